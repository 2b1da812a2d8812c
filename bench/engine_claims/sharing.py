"""Decoding behind one long common prompt, with its pages in common and with pages of one's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import numpy as np

from engine_claims.finding import Finding, ratios
from engine_claims.setting import Setting
from kforge.core.defaults import PAGE_TOKENS
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams

PART = "sharing"
SEQUENCES, COMMON, OWN, ANSWER = 16, 2048, 64, 48  # tokens: of the common prompt, behind it, of an answer


@dataclass
class Decoded:
    """Tokens of steps that did nothing but decode all sequences, and the seconds of these steps."""

    tokens: int = 0
    seconds: float = 0.0
    texts: dict[int, list[int]] = field(default_factory=dict)  # by sequence

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def decode(engine: Engine, prompts: list[list[int]], answer: int) -> Decoded:
    """Answers all prompts at once. The engine must be idle; what it knows of earlier prompts is forgotten first."""
    engine.forget_prefixes()
    numbers = {engine.add(prompt, SamplingParams(max_tokens=answer, ignore_eos=True)): i
               for i, prompt in enumerate(prompts)}
    decoded = Decoded(texts={i: [] for i in range(len(prompts))})
    while not engine.idle:
        before, began = engine.stats.computed_tokens, perf_counter()
        outputs = engine.step()
        seconds = perf_counter() - began
        for output in outputs:
            decoded.texts[numbers[output.sequence]].append(output.token)
        if len(outputs) == len(prompts) == engine.stats.computed_tokens - before:
            decoded.tokens += len(outputs)
            decoded.seconds += seconds
    return decoded


def measure(setting: Setting) -> tuple[list[Finding], dict[str, object]]:
    sequences = setting.count(SEQUENCES)
    whole = COMMON + OWN + ANSWER
    share = setting.context(whole) / whole  # of the lengths, for a model with a short context
    common, own, answer = (max(int(share * n), 4) for n in (COMMON, OWN, ANSWER))
    positions = sequences * (common + own + answer + PAGE_TOKENS)
    engines = {shared: setting.engine(kv_tokens=positions, max_sequences=sequences, prefix_cache=shared)
               for shared in (True, False)}

    def run(number: int, shared: bool) -> Decoded:
        rng = np.random.default_rng(number)
        system = rng.integers(0, setting.model.config.vocab, common).tolist()
        prompts = [system + rng.integers(0, setting.model.config.vocab, own).tolist() for _ in range(sequences)]
        return decode(engines[shared], prompts, answer)

    seen = setting.answered(PART, {True: "common pages", False: "pages of their own"}, run, "common pages")
    for engine in engines.values():
        engine.close()
    rates = {shared: [d.rate for d in each] for shared, each in seen.items()}
    raw: dict[str, object] = {"sequences": sequences, "common": common, "own": own, "answer": answer,
                              "tokens_per_second": {"shared": rates[True], "not shared": rates[False]}}
    finding = Finding(
        PART, "a prefix that sequences share is read once for all of them", "ChunkAttention (arXiv 2402.15220): "
        "self-attention 3.2x to 4.8x, serving 1.6x to 2.3x as fast behind system prompts of 1024 to 4096 tokens",
        "1.6x to 2.3x", ratios(rates[True], rates[False]), "x",
        f"{median(rates[True]):.0f} beside {median(rates[False]):.0f} tokens/s in steps that decode {sequences} "
        f"sequences of {common + own} tokens, {common} of them common",
        "Only attention gains, so a step gains as much as attention has of it; and what remains of attention on a CPU "
        "is arithmetic, which grows with the sequences whoever reads the pages.")
    return [finding], raw
