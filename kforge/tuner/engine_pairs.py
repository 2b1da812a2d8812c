"""Two engines on the same weights, in alternating bursts: what one set of kernels gives the engine over another."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from kforge.core.kernel import KernelRecord
from kforge.core.target import Target
from kforge.engine.engine import Engine
from kforge.engine.kernel_set import OWN, DefaultKernels, KernelSet, default_kernels
from kforge.engine.weights import Weights
from kforge.models.model import Model
from kforge.models.workloads import Mode
from kforge.tuner.location import Location, locate
from kforge.tuner.modes import ModeDriver
from kforge.tuner.options import TuneOptions

PAIRS = 40
_LEAST_PAIRS, _PAIR_SECONDS = 12, 8.0  # a prefill takes so long that fewer pairs must do


@dataclass(frozen=True)
class Pairs:
    """Bursts of two engines, one with and one without something: ratios without / with."""

    location: Location
    same_tokens: bool
    count: int

    @property
    def apparent(self) -> float:
        """How far apart the two seem to be, either way."""
        return max(abs(self.location.lower), abs(self.location.upper))


class EnginePairs:
    """Makes the engines of a comparison, which share one copy of the weights, and runs them against each other.

    ``isolate``: all in processes of their own, as soon as one of them has a kernel from elsewhere: what isolation costs
    must not be taken for a kernel's doing.
    """

    def __init__(self, model: Model, options: TuneOptions, default: DefaultKernels, isolate: bool = False):
        self.default = default
        self._model, self._options, self._isolate = model, options, isolate
        self._weights = Weights(model, isolate)

    @classmethod
    def on(cls, target: Target, model: Model, options: TuneOptions, kernels: Iterable[KernelRecord]) -> EnginePairs:
        """On the target's default kernels; isolated where one of ``kernels`` is from elsewhere, and where a device has
        a part in the steps."""
        isolate = target.backends[0] != "cpp" or any(k.proposer not in OWN for k in kernels)
        return cls(model, options, default_kernels(target), isolate)

    def driver(self, kernels: KernelSet, mode: Mode) -> ModeDriver:
        """An engine in a mode, with just the memory that the mode needs."""
        tokens = mode.sequences * (mode.context + 128)
        engine = Engine(
            self._model,
            kernels,
            threads=self._options.threads,
            kv=self._options.kv,
            act=self._options.act,
            max_sequences=max(mode.sequences, 1),
            kv_tokens=tokens,
            weights=self._weights,
            isolate=self._isolate,
            text=False,
        )
        return ModeDriver(engine, mode)

    def floor(self, driver: ModeDriver, kernels: KernelSet, mode: Mode) -> float:
        """How far a driver can seem to be, here and now, from another with the same kernels."""
        with self.driver(kernels, mode) as itself:
            return interleave(driver, itself).apparent


def interleave(new: ModeDriver, old: ModeDriver) -> Pairs:
    """Alternating bursts of two engines from the same start, ABBA: ``PAIRS`` of them, or what some seconds allow."""
    new.restart()
    old.restart()
    same = new.burst().output == old.burst().output
    ratios: list[float] = []
    until = time.monotonic() + _PAIR_SECONDS
    for n in range(PAIRS):
        if n >= _LEAST_PAIRS and time.monotonic() > until:
            break
        first, second = (new, old) if n % 2 == 0 else (old, new)
        a, b = first.burst(), second.burst()
        same &= a.output == b.output
        fresh, stale = (a, b) if first is new else (b, a)
        ratios.append(stale.seconds / fresh.seconds)
    return Pairs(locate(ratios), same, len(ratios))
