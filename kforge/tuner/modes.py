"""The engine driven through one way of using a model, in bursts that can alternate with another engine's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kforge.core.workload import Phase
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.models.workloads import Mode

DECODE_STEPS = 8  # per timed burst: some tens of milliseconds on a small model


@dataclass(frozen=True)
class Burst:
    """One timed piece of work: seconds, tokens computed in them, and the tokens that came out."""

    seconds: float
    tokens: int
    output: tuple[int, ...]


class ModeDriver:
    """Keeps an engine in one mode, so that bursts of two engines can alternate at the same depth."""

    def __init__(self, engine: Engine, mode: Mode):
        self._engine, self._mode = engine, mode
        self._vocab = engine.model.config.vocab
        self._running: list[int] = []
        self._left = 0  # decode steps until the first sequence ends

    def burst(self) -> Burst:
        return self._prefill() if self._mode.phase is Phase.PREFILL else self._decode()

    def restart(self) -> None:
        """The next burst begins again at the mode's first depth."""
        self._left = 0

    def __enter__(self) -> ModeDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def used(self) -> dict[str, int]:
        """Calls so far of each kernel, by candidate hash: the proof that it ran."""
        used: dict[str, int] = {}
        for kernel in self._engine.kernels_used():
            used[kernel.hash] = used.get(kernel.hash, 0) + kernel.calls
        return used

    def _prefill(self) -> Burst:
        self._engine.forget_prefixes()  # every burst has the same prompt
        self._engine.add(self._prompt(0, self._mode.queries), SamplingParams(max_tokens=1, ignore_eos=True))
        output: list[int] = []
        began = time.perf_counter()
        while not self._engine.idle:
            output += [o.token for o in self._engine.step()]
        return Burst(time.perf_counter() - began, self._mode.queries, tuple(output))

    def _decode(self) -> Burst:
        if self._left < DECODE_STEPS:
            self._refill()
        self._left -= DECODE_STEPS
        output: list[int] = []
        began = time.perf_counter()
        for _ in range(DECODE_STEPS):
            output += [o.token for o in self._engine.step()]
        return Burst(time.perf_counter() - began, DECODE_STEPS * self._mode.sequences, tuple(output))

    def _refill(self) -> None:
        """Start all sequences again at half of the mode's context and run them to their first token."""
        for sequence in self._running:
            self._engine.abort(sequence)
        self._running.clear()
        self._engine.forget_prefixes()  # or sequences would start at other steps than in an engine that knows none
        depth = max(self._mode.context // 2 + 1, 1)
        wanted = max(self._mode.context - depth - 1, 4 * DECODE_STEPS)
        for s in range(self._mode.sequences):
            params = SamplingParams(max_tokens=wanted, ignore_eos=True)
            self._running.append(self._engine.add(self._prompt(s, depth), params))
        counts: dict[int, int] = {}
        while len(counts) < self._mode.sequences:
            for output in self._engine.step():
                counts[output.sequence] = counts.get(output.sequence, 0) + 1
        self._left = wanted - max(counts.values())

    def _prompt(self, sequence: int, tokens: int) -> Sequence[int]:
        return [100 + ((p + 31 * sequence) * 7919) % (self._vocab - 200) for p in range(tokens)]
