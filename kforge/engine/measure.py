"""Engines beside each other: tokens per second from interleaved runs in one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from kforge.core.errors import KforgeError
from kforge.core.summary import Summary
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams


@dataclass(frozen=True)
class Setting:
    """What is timed: ``decode`` further tokens of ``batch`` sequences after prompts of ``prompt`` tokens, the prompts
    themselves not counted; with ``decode`` 0 the prompts are what is timed."""

    name: str
    batch: int
    prompt: int
    decode: int


@dataclass(frozen=True)
class Sample:
    """One timed run."""

    tokens: int
    seconds: float
    python_share: float  # part of the time outside programs (or torch)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Figure:
    """One engine at one setting. ``ratio`` is the median of the pairwise ratios to the engine before it in the list."""

    kernels: str
    setting: str
    rate: Summary
    ratio: Summary | None
    python_share: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Comparison:
    """``bandwidth``: bytes/s measured beside every round, where a probe was given."""

    figures: tuple[Figure, ...]
    bandwidth: Summary | None


def decode_setting(batch: int, prompt: int = 16, decode: int = 48) -> Setting:
    """Named by the tokens in the cache, too, from the first step to the last: the longer the context, the slower."""
    return Setting(f"decode batch {batch} context {prompt}-{prompt + decode}", batch, prompt, decode)


def prefill_setting(prompt: int) -> Setting:
    return Setting(f"prefill {prompt}", 1, prompt, 0)


def run_once(engine: Engine, setting: Setting, seed: int) -> Sample:
    """Times one setting on random prompts, all different, so that no pages are shared. The engine must be idle."""
    if not engine.idle:
        raise KforgeError("An engine can only be timed while it has no requests.")
    rng = np.random.default_rng(seed)
    params = SamplingParams(max_tokens=setting.decode + 1, ignore_eos=True)
    prompts = rng.integers(0, engine.model.config.vocab, (setting.batch, setting.prompt))
    engine.forget_prefixes()  # other settings draw the same tokens from the same seed
    waiting = {engine.add(prompt.tolist(), params) for prompt in prompts}
    if setting.decode:
        while waiting:
            waiting -= {output.sequence for output in engine.step()}
    before, began = engine.stats, perf_counter()
    while not engine.idle:
        engine.step()
    seconds, after = perf_counter() - began, engine.stats
    inside = after.runner_seconds - before.runner_seconds
    # All sequences started together up to the chunking of their prompts, so the few tokens that early ones got while
    # late ones were still in their prompt are not in this difference.
    tokens = after.generated_tokens - before.generated_tokens if setting.decode else setting.batch * setting.prompt
    return Sample(tokens, seconds, 1.0 - inside / seconds)


def compare(engines: Mapping[str, Engine], settings: Sequence[Setting], repeats: int,
            probe: Callable[[], float] | None = None, progress: Callable[[str], None] | None = None) -> Comparison:
    """Every engine at every setting, ``repeats`` rounds after an uncounted one, forwards and backwards in turn."""
    samples: dict[tuple[str, str], list[Sample]] = {(name, s.name): [] for s in settings for name in engines}
    bandwidth = []
    for round_ in range(repeats + 1):
        order = list(engines)[:: 1 if round_ % 2 else -1]
        for setting in settings:
            for name in order:
                if progress:
                    progress(f"round {round_} of {repeats}: {setting.name}, {name}")
                sample = run_once(engines[name], setting, seed=round_)
                if round_:
                    samples[name, setting.name].append(sample)
        if round_ and probe is not None:
            bandwidth.append(probe())
    figures = []
    for setting in settings:
        previous: list[Sample] | None = None
        for name in engines:
            own = samples[name, setting.name]
            ratio = Summary.of([a.rate / b.rate for a, b in zip(own, previous, strict=True)]) if previous else None
            share = statistics.median(s.python_share for s in own)
            figures.append(Figure(name, setting.name, Summary.of([s.rate for s in own]), ratio, share, tuple(own)))
            previous = own
    return Comparison(tuple(figures), Summary.of(bandwidth) if bandwidth else None)
