"""What a long prompt does to those who are getting tokens, and what chunks of it change."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from engine_claims.finding import Finding, ratios, times
from engine_claims.setting import Setting
from kforge.core.defaults import PAGE_TOKENS, SERVING_PREFILL_TOKENS
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams

PART = "stalls"
DECODERS, SHORT, LONG = 8, 32, 1536  # sequences that decode, the tokens of their prompts, and those of the long one
BEFORE = 30  # steps of decoding before the long prompt comes
CHUNKS = (512, SERVING_PREFILL_TOKENS, 32)  # prompt tokens a step, beside the whole prompt in one


@dataclass(frozen=True)
class Stalled:
    """Seconds: the longest between two steps that brought tokens while the long prompt was computed, the usual ones
    before it came, and from its arrival to its first token."""

    worst: float
    usual: float
    first: float


def stall(engine: Engine, seed: int, long: int) -> Stalled:
    """Decoders at work, then a long prompt. The engine must be idle."""
    rng = np.random.default_rng(seed)
    vocab = engine.model.config.vocab
    forever = SamplingParams(max_tokens=_most_steps(long), ignore_eos=True)
    decoders = {engine.add(rng.integers(0, vocab, SHORT).tolist(), forever) for _ in range(DECODERS)}
    missing = set(decoders)
    while missing:
        missing -= {output.sequence for output in engine.step()}
    usual = []
    for _ in range(BEFORE):
        began = perf_counter()
        engine.step()
        usual.append(perf_counter() - began)
    number = engine.add(rng.integers(0, vocab, long).tolist(), SamplingParams(max_tokens=1, ignore_eos=True))
    arrived = last = perf_counter()
    gaps, first = [], None
    while first is None:
        outputs = engine.step()
        now = perf_counter()
        here = {output.sequence for output in outputs}
        if here & decoders:  # every decoder gets a token in every step, so that their gaps are the steps
            gaps.append(now - last)
            last = now
        if number in here:
            first = now - arrived
    for decoder in decoders:
        engine.abort(decoder)
    return Stalled(max(gaps), median(usual), first)


def _most_steps(long: int) -> int:
    """Tokens that a decoder gets at most before the long prompt is computed."""
    return SHORT + BEFORE + -(-long // min(CHUNKS)) + 16


def measure(setting: Setting) -> tuple[list[Finding], dict[str, object]]:
    long = min(LONG, setting.context(2 * LONG) - 8, max(setting.count(LONG), 64))
    positions = long + PAGE_TOKENS + DECODERS * (SHORT + _most_steps(long) + PAGE_TOKENS)
    common = {"kv_tokens": positions, "max_sequences": DECODERS + 1, "prefix_cache": False}
    engines: dict[int | None, Engine] = {None: setting.engine(max_tokens_per_step=long + DECODERS, **common)}
    for chunk in CHUNKS:
        engines[chunk] = setting.engine(max_tokens_per_step=chunk + DECODERS, max_prefill_tokens_per_step=chunk,
                                        **common)
    seen: dict[int | None, list[Stalled]] = {chunk: [] for chunk in engines}
    for number, chunk in setting.turns(tuple(engines)):
        setting.say(f"{PART}: round {number} of {setting.rounds}, chunks of {chunk or 'the whole prompt'}")
        stalled = stall(engines[chunk], number, long)
        if number:
            seen[chunk].append(stalled)
    for engine in engines.values():
        engine.close()
    runs = {str(chunk or "whole"): [vars(stalled) for stalled in each] for chunk, each in seen.items()}
    raw: dict[str, object] = {"decoders": DECODERS, "prompt": long, "stalled": runs}
    return [_finding(chunk, seen, long) for chunk in CHUNKS], raw


def _finding(chunk: int, seen: dict[int | None, list[Stalled]], long: int) -> Finding:
    whole, cut = seen[None], seen[chunk]
    worst = ratios([s.worst for s in whole], [s.worst for s in cut])
    price = ratios([s.first for s in cut], [s.first for s in whole])
    return Finding(
        PART, f"chunks of {chunk} prompt tokens keep a long prompt from stalling others",
        "Sarathi-Serve (OSDI 2024): no stalls of generation, hence 2.6x (Mistral-7B) to 5.6x (Falcon-180B) the load of "
        "vLLM at equal tail latency", "2.6x to 5.6x the load", worst, "x",
        f"the longest gap between tokens is {1e3 * median([s.worst for s in cut]):.0f} beside "
        f"{1e3 * median([s.worst for s in whole]):.0f} ms (usual: {1e3 * median([s.usual for s in cut]):.1f} ms) while "
        f"{long} tokens come in; their first token takes {times(price)} as long",
        "A gap is as long as the step, so about as many times shorter as the chunk is shorter than the prompt, down to "
        "the time of a step that only decodes. The load that this allows at a bound on gaps depends on the trace; the "
        "figure here is the gap itself.")
