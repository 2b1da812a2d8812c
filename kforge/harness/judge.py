"""The judge: from paired timings to a verdict. Pure statistics, no clock, no process.

Single pairs have heavy tails, and pairs of one zygote share its luck with memory and with the minute. So each zygote is
summarised by a robust location of its log ratios (Hodges-Lehmann), and confidence comes from the scatter of those
summaries over fresh zygotes (Student's t, whose tails pay for their small number). Correlation inside a zygote then
needs no model. Every pair counts: an outlier moves a robust location little, while leaving it out is a choice.

What the machine adds to that is measured (``kforge judge calibrate``): how far a kernel can seem to be from itself, how
much wider than Student's t bounds must be, and how much scatter has been seen. Where zygotes scatter by more than that,
bounds and floor grow by as many times: such a machine can still show a gain that towers over its noise, and no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kforge.core.trial import Decision, RejectReason, Verdict
from kforge.harness.pairs import PairedSample
from kforge.harness.quantiles import student_t_quantile
from kforge.targets.noise import UNCALIBRATED, Noise, NoiseClass

LEAST_GAIN = 0.01
LEAST_ZYGOTES = 6
_ROOFLINE_SLACK = 0.95  # a limit is a measurement too


@dataclass(frozen=True)
class Rules:
    """How sure to be. ``error`` is the chance of a false acceptance over all ``finalists`` and all ``looks`` together;
    ``miss`` the chance, at one look, of refusing a gain of exactly ``margin``, which costs a gain and no truth.

    ``looks``: at how many zygotes a comparison is looked at; set beforehand, since each look is another chance to err.
    ``noise``: what this machine adds: a floor under gains that count, a factor on the width of all bounds, and the
    scatter of zygotes beyond which both grow with it. The default is that of a machine that was never calibrated.
    """

    error: float = 0.003
    finalists: int = 1
    looks: tuple[int, ...] = (LEAST_ZYGOTES, 12, 24)
    miss: float = 0.05
    noise: Noise = UNCALIBRATED

    @property
    def alpha(self) -> float:
        """Error rate of one look at one finalist (Bonferroni)."""
        return self.error / (self.finalists * len(self.looks))


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
    """One robust location per zygote, in the order of their numbers.

    Two pairs in a row are in opposite order (ABBA or BAAB), so their mean is free of what coming second is worth.
    """
    logs, zygotes = np.asarray(sample.log_ratios), np.asarray(sample.zygotes)
    return np.array([hodges_lehmann(_both_orders(logs[zygotes == z])) for z in np.unique(zygotes)])


def _both_orders(logs: np.ndarray) -> list[float]:
    even = len(logs) // 2 * 2
    return [*logs[:even].reshape(-1, 2).mean(axis=1).tolist(), *logs[even:].tolist()]


def scatter_of(locations: np.ndarray) -> float:
    """Standard deviation of zygotes' locations; infinite for fewer than two."""
    return float(locations.std(ddof=1)) if len(locations) > 1 else math.inf


def interval(locations: np.ndarray, alpha: float, stretch: float = 1.0) -> Interval:
    """Bounds of the mean of independent locations; infinite for fewer than two."""
    middle = float(locations.mean())
    if len(locations) < 2:
        return Interval(middle, -math.inf, math.inf)
    error = stretch * scatter_of(locations) / math.sqrt(len(locations))
    half = student_t_quantile(1.0 - alpha, len(locations) - 1) * error
    return Interval(middle, middle - half, middle + half)


def decide(candidate: str, incumbent: str, shapes: Sequence[ShapeSample], rules: Rules) -> Verdict:
    """Verdict on one look. Every sample has the same number of zygotes (one of ``rules.looks``).

    UNDECIDED at a look before the last asks for more zygotes; at the last it means that the machine is too noisy.
    """
    locations = [zygote_locations(shape.sample) for shape in shapes]
    zygotes = min(len(found) for found in locations)
    weights = np.array([shape.weight for shape in shapes])
    weights = weights / weights.sum()
    # Zygote k of one shape has nothing to do with zygote k of another, so their weighted sums are independent over k.
    sums = sum(w * found[:zygotes] for w, found in zip(weights, locations, strict=True))
    noises = [rules.noise.at(shape.sample.incumbent_seconds) for shape in shapes]
    beyond = _beyond(locations, noises)
    stretch, floor = beyond * max(n.stretch for n in noises), beyond * max(n.floor for n in noises)
    evidence = _Evidence(
        interval(sums, rules.alpha, stretch),
        interval(sums, rules.miss, stretch).upper,
        [interval(found, rules.alpha, stretch) for found in locations],
        math.log1p(max(LEAST_GAIN, floor)),
        any(s.sample.seconds < _ROOFLINE_SLACK * s.limit_seconds for s in shapes),
        zygotes >= rules.looks[-1],
    )
    reason, decision = _decide(evidence)
    whole, each = evidence.whole, evidence.each
    per_shape = tuple((shape.sample.workload, math.expm1(i.location)) for shape, i in zip(shapes, each, strict=True))
    verdict = Verdict(
        decision, candidate, incumbent, math.expm1(whole.location), _ratio(whole.lower), _ratio(whole.upper),
        sum(len(shape.sample.log_ratios) for shape in shapes), sum(len(found) for found in locations), floor,
        reason, per_shape,
    )
    return _told(verdict)


@dataclass(frozen=True)
class _Evidence:
    whole: Interval
    hopeful: float  # upper bound of the whole at the looser error rate of refusals
    each: Sequence[Interval]
    margin: float  # log of the least gain that counts, and of the largest loss at a shape that does not
    impossible: bool  # faster than the hardware
    last: bool


def _beyond(locations: Sequence[np.ndarray], noises: Sequence[NoiseClass]) -> float:
    """How many times as much as was ever calibrated the zygotes scatter, at least 1.

    A t bound grows with the scatter already. The factor pays for what nobody measured: that on a machine in such a
    state zygotes are less alike, or more dependent, than those that the stretch and the floor were fitted to.
    """
    seen = [scatter_of(found) / noise.scatter_limit for found, noise in zip(locations, noises, strict=True)
            if len(found) > 1]
    return max([1.0, *seen])


def _decide(seen: _Evidence) -> tuple[RejectReason | None, Decision]:
    whole, margin = seen.whole, seen.margin
    if seen.impossible:
        return RejectReason.ABOVE_ROOFLINE, Decision.UNDECIDED
    if whole.upper < 0:
        return RejectReason.SLOWER, Decision.REJECTED
    if seen.hopeful < margin:
        return RejectReason.GAIN_TOO_SMALL, Decision.REJECTED
    if any(i.upper < -margin for i in seen.each):
        return RejectReason.SHAPE_REGRESSION, Decision.REJECTED
    if whole.lower > 0 and whole.location >= margin and all(i.lower > -margin for i in seen.each):
        return None, Decision.ACCEPTED
    if not seen.last:
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
