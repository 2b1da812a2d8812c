"""The judge: from paired timings to a verdict. Pure statistics, no clock, no process.

Single pairs have heavy tails, and pairs of one zygote share its luck with memory. So each zygote is summarised by a
robust location of its log ratios (Hodges-Lehmann), and confidence comes from the scatter of those summaries over fresh
zygotes (Student's t, whose tails pay for their small number). Correlation inside a zygote then needs no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kforge.core.trial import Decision, RejectReason, Verdict
from kforge.harness.pairs import PairedSample
from kforge.harness.quantiles import student_t_quantile

LEAST_GAIN = 0.01
LEAST_ZYGOTES = 5
_ROOFLINE_SLACK = 0.95  # a limit is a measurement too


@dataclass(frozen=True)
class Rules:
    """How sure to be. ``error`` is the chance of a false acceptance over all ``finalists`` and all ``looks`` together.

    ``looks``: at how many zygotes a comparison is looked at; set beforehand, since each look is another chance to err.
    """

    error: float = 0.05
    finalists: int = 1
    looks: tuple[int, ...] = (LEAST_ZYGOTES, 8, 12)
    floor: float = 0.0  # the machine's A/A floor, as a ratio minus one

    @property
    def alpha(self) -> float:
        """Error rate of one look at one finalist (Bonferroni)."""
        return self.error / (self.finalists * len(self.looks))

    @property
    def margin(self) -> float:
        """Least gain that counts, and largest loss at a shape that does not: as a ratio minus one."""
        return max(LEAST_GAIN, self.floor)


@dataclass(frozen=True)
class Interval:
    """A location of log ratios with one-sided bounds, each at the error rate asked for."""

    location: float
    lower: float
    upper: float


@dataclass(frozen=True)
class ShapeSample:
    """A sample with what it weighs in the bucket (share of time) and what the hardware allows (0: unknown)."""

    sample: PairedSample
    weight: float = 1.0
    limit_seconds: float = 0.0


def hodges_lehmann(values: Sequence[float]) -> float:
    """Median of the Walsh averages (Hodges and Lehmann 1963): resists 29 % of outliers, 96 % efficient for a normal."""
    return float(np.median(walsh_averages(values)))


def walsh_averages(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Means of all pairs of values, each with itself too."""
    x = np.asarray(values, dtype=np.float64)
    i, j = np.triu_indices(len(x))
    return (x[i] + x[j]) / 2


def zygote_locations(sample: PairedSample) -> np.ndarray:
    """One robust location per zygote, in the order of their numbers."""
    logs, zygotes = np.asarray(sample.log_ratios), np.asarray(sample.zygotes)
    return np.array([hodges_lehmann(logs[zygotes == z].tolist()) for z in np.unique(zygotes)])


def interval(locations: np.ndarray, alpha: float) -> Interval:
    """Bounds of the mean of independent locations; infinite for fewer than two."""
    middle = float(locations.mean())
    if len(locations) < 2:
        return Interval(middle, -math.inf, math.inf)
    half = (
        student_t_quantile(1.0 - alpha, len(locations) - 1) * float(locations.std(ddof=1)) / math.sqrt(len(locations))
    )
    return Interval(middle, middle - half, middle + half)


def floor_of(sample: PairedSample) -> float:
    """A/A floor from a kernel compared with itself: the 95 % upper bound of the apparent gain, as a ratio minus one."""
    found = interval(zygote_locations(sample), 0.025)
    return math.expm1(max(abs(found.lower), abs(found.upper)))


def decide(candidate: str, incumbent: str, shapes: Sequence[ShapeSample], rules: Rules) -> Verdict:
    """Verdict on one look. Every sample has the same number of zygotes (one of ``rules.looks``).

    UNDECIDED at a look before the last asks for more zygotes; at the last it means that the machine is too noisy.
    """
    locations = [zygote_locations(shape.sample) for shape in shapes]
    zygotes = min(len(found) for found in locations)
    weights = np.array([shape.weight for shape in shapes])
    weights = weights / weights.sum()
    # Zygote k of one shape has nothing to do with zygote k of another, so their weighted sums are independent over k.
    whole = interval(sum(w * found[:zygotes] for w, found in zip(weights, locations, strict=True)), rules.alpha)
    each = [interval(found, rules.alpha) for found in locations]
    reason, decision = _decide(whole, each, shapes, rules, last=zygotes >= rules.looks[-1])
    per_shape = tuple((shape.sample.workload, math.expm1(i.location)) for shape, i in zip(shapes, each, strict=True))
    verdict = Verdict(
        decision, candidate, incumbent, math.expm1(whole.location), _ratio(whole.lower), _ratio(whole.upper),
        sum(len(shape.sample.log_ratios) for shape in shapes), sum(len(found) for found in locations), rules.floor,
        reason, per_shape,
    )
    return _told(verdict)


def _decide(whole: Interval, each: Sequence[Interval], shapes: Sequence[ShapeSample], rules: Rules,
            last: bool) -> tuple[RejectReason | None, Decision]:
    margin = math.log1p(rules.margin)
    if any(s.sample.seconds < _ROOFLINE_SLACK * s.limit_seconds for s in shapes):
        return RejectReason.ABOVE_ROOFLINE, Decision.UNDECIDED
    if whole.upper < 0:
        return RejectReason.SLOWER, Decision.REJECTED
    if whole.upper < margin:
        return RejectReason.GAIN_TOO_SMALL, Decision.REJECTED
    if any(i.upper < -margin for i in each):
        return RejectReason.SHAPE_REGRESSION, Decision.REJECTED
    if whole.lower > 0 and whole.location >= margin and all(i.lower > -margin for i in each):
        return None, Decision.ACCEPTED
    if not last:
        return RejectReason.NOT_SIGNIFICANT, Decision.UNDECIDED
    if whole.upper - whole.lower > 2 * margin:
        return RejectReason.TOO_NOISY, Decision.UNDECIDED
    if whole.lower <= 0:
        return RejectReason.NOT_SIGNIFICANT, Decision.REJECTED
    if whole.location < margin:
        return RejectReason.GAIN_TOO_SMALL, Decision.REJECTED
    return RejectReason.TOO_NOISY, Decision.UNDECIDED  # gain shown, but a shape is not shown to be non-inferior


def _ratio(log: float) -> float:
    return math.expm1(min(log, 700.0))


_SENTENCES: Mapping[RejectReason | None, str] = {
    None: "faster, and not slower at any shape",
    RejectReason.ABOVE_ROOFLINE: "faster than the hardware's measured limit: to be audited",
    RejectReason.SLOWER: "slower than the incumbent",
    RejectReason.GAIN_TOO_SMALL: "the gain is below what counts",
    RejectReason.SHAPE_REGRESSION: "slower at a shape of the bucket",
    RejectReason.NOT_SIGNIFICANT: "the gain is not shown",
    RejectReason.TOO_NOISY: "the machine is too noisy to tell inside the budget",
}


def _told(v: Verdict) -> Verdict:
    shown = (
        f"{v.gain:+.2%} [{v.lower:+.2%}, {v.upper:+.2%}], {v.pairs} pairs in {v.zygotes} zygotes, floor {v.floor:.2%}"
    )
    text = f"{_SENTENCES.get(v.reason, v.reason)}: {shown}"
    return replace(v, text=text)
