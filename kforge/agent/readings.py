"""How far a search's times can be believed: each was taken by itself, so two of them differ for more than one reason.

Only interleaved pairs, which the judge measures, tell gains of a percent or less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kforge.core.trial import Timing
from kforge.tuner.proposals import Tried

UNPAIRED = 0.015  # of a time: how far one kernel's medians lie apart at two moments, however little its batches scatter
_MOST_SPREAD = 0.5  # of an empty call: what is beyond was a disturbance while it was measured
_FEW = 3  # batches: with fewer, their scatter says nothing
_FEW_MARGIN = 0.10
# Of a normal sample: the interquartile range is 1.349 standard deviations, the median's own deviation 1.253 of them
# over the root of the count; twice that is left by one median in twenty.
_MEDIAN = 2 * 1.253 / 1.349


@dataclass(frozen=True)
class Reading:
    """Seconds of a call, and how far from them the kernel's true time may lie."""

    seconds: float
    margin: float = 0.0

    def like(self, other: Reading) -> bool:
        """Whether the two cannot be told apart."""
        return abs(self.seconds - other.seconds) <= math.hypot(self.margin, other.margin)


Readings = Mapping[str, Reading]  # bucket -> of one call


def reading(timing: Timing, empty_call: Timing | None = None) -> Reading:
    """``empty_call``: what every call holds beside its kernel's work; it scatters by itself, more than batches show."""
    share = _FEW_MARGIN if timing.batches < _FEW else _MEDIAN * timing.spread / math.sqrt(timing.batches)
    around = empty_call.seconds * min(empty_call.spread, _MOST_SPREAD) if empty_call else 0.0
    return Reading(timing.seconds, max(share, UNPAIRED) * timing.seconds + around)


def fastest(tried: Iterable[Tried]) -> dict[str, Timing]:
    """Of right points, by bucket. Below what the clock resolves nothing can be compared."""
    best: dict[str, Timing] = {}
    for point in tried:
        for bucket, trial in point.trials.items():
            timing = trial.timing if trial.ok else None
            if timing and timing.seconds > 0 and (bucket not in best or timing.seconds < best[bucket].seconds):
                best[bucket] = timing
    return dict(sorted(best.items()))


def best_readings(tried: Iterable[Tried], empty_call: Timing | None = None) -> dict[str, Reading]:
    return {bucket: reading(timing, empty_call) for bucket, timing in fastest(tried).items()}


def told_apart(own: Readings, before: Readings) -> dict[str, float]:
    """Seconds of ``own``, as those of ``before`` where the two cannot be told apart: what a gain may be drawn from."""
    return {bucket: before[bucket].seconds if bucket in before and mine.like(before[bucket]) else mine.seconds
            for bucket, mine in own.items()}
