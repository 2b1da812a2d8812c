"""From what a calibration recorded to the judge's parameters and its rates of error. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kforge.core.trial import Decision, RejectReason
from kforge.harness.judge import hodges_lehmann
from kforge.harness.quantiles import proportion_lower, proportion_upper
from kforge.targets.noise import DURATION_CLASSES, Noise, NoiseClass

_BOUND = 0.975  # one side of a two-sided 95 % interval
_LIMIT = 3.0  # times the median scatter of groups of zygotes: one bad minute while calibrating must not raise it
_SIGMA = 1.4826  # of a normal distribution over its median absolute deviation


@dataclass(frozen=True)
class SelfSample:
    """A group of consecutive zygotes in which a kernel met itself, relinked. ``locations``: one log ratio each."""

    kernel: str
    locations: tuple[float, ...]
    seconds: float  # of a call
    waited: float  # share of batches in which a thread waited for a processor
    took: float


@dataclass(frozen=True)
class Inserted:
    """Work that makes a kernel slower: a ``share`` of its time for each step, and its 95 % bounds."""

    kernel: str
    share: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Decided:
    """One decision. ``number``: its place in the plan; ``slowdown``: by what the incumbent is slower (0: A/A)."""

    number: int
    kernel: str
    slowdown: float
    decision: str
    reason: str
    audited: bool  # the judge would accept, and the audit was asked
    gain: float
    lower: float
    upper: float
    zygotes: int
    pairs: int
    seconds: float  # of a candidate's call
    waited: float
    took: float
    text: str = ""  # what failed, where a kernel did


def fit(samples: Sequence[SelfSample], threads: int, date: str) -> Noise:
    """The judge's parameters on this machine; classes of duration that have no kernel get the worst of the others.

    Whether zygotes that follow each other are alike shows in the means of groups, which then scatter by more than
    their members allow. Single groups are few, so that is one figure for all kernels.
    """
    names = list(dict.fromkeys(s.kernel for s in samples))
    groups = {name: np.array([s.locations for s in samples if s.kernel == name]) for name in names}
    within = sum(float(g.var(axis=1, ddof=1).sum()) / v for g in groups.values() if (v := _mean_variance(g)))
    between = sum(
        float(g.mean(axis=1).var(ddof=1)) * g.shape[1] * len(g) / v for g in groups.values() if (v := _mean_variance(g))
    )
    stretch = max(1.0, math.sqrt(between / within)) if within else 1.0
    classes = []
    for name in names:
        flat = groups[name].reshape(-1)
        middle = hodges_lehmann(flat.tolist())
        error = stretch * _SIGMA * float(np.median(np.abs(flat - np.median(flat)))) / math.sqrt(len(flat))
        floor = math.expm1(abs(middle) + 2 * error)
        limit = _LIMIT * float(np.median(groups[name].std(axis=1, ddof=1)))
        seconds = statistics.median(s.seconds for s in samples if s.kernel == name)
        end = next(end for end in DURATION_CLASSES if seconds <= end)
        classes.append(NoiseClass(end, floor, stretch, limit))
    merged = tuple(_worst(end, [c for c in classes if c.up_to_seconds == end] or classes) for end in DURATION_CLASSES)
    return Noise(threads, merged, sum(len(s.locations) for s in samples), date)


def _mean_variance(group: np.ndarray) -> float:
    return float(group.var(axis=1, ddof=1).mean())


def _worst(end: float, classes: Sequence[NoiseClass]) -> NoiseClass:
    return NoiseClass(end, max(c.floor for c in classes), max(c.stretch for c in classes),
                      max(c.scatter_limit for c in classes))


@dataclass(frozen=True)
class Rate:
    """Of the decisions about one kernel (or all) at one slow-down. ``lower``, ``upper``: exact 95 % bounds of the
    accepted share (Clopper and Pearson, two-sided). ``measured``, ``error``: the slow-down as these decisions together
    saw it, and its standard error, as ratios minus one.
    """

    kernel: str
    slowdown: float
    decisions: int
    accepted: int
    rejected: int
    undecided: int
    lower: float
    upper: float
    measured: float
    error: float
    seconds_per_decision: float
    zygotes_per_decision: float
    waited: float
    too_noisy: int  # the judge abstained
    not_audited: int  # the judge would have accepted, and the audit did not confirm it
    level_spread: float  # 95th over 5th percentile of a call's time over all decisions, minus one: what the minutes did

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


ALL = "all"


def rates(decided: Sequence[Decided]) -> list[Rate]:
    """By kernel and slow-down, and over all kernels."""
    kernels = list(dict.fromkeys(d.kernel for d in decided))
    sizes = sorted({d.slowdown for d in decided})
    found = [_rate(k, s, [d for d in decided if (d.kernel, d.slowdown) == (k, s)]) for s in sizes for k in kernels]
    return [r for r in found if r.decisions] + [_rate(ALL, s, [d for d in decided if d.slowdown == s]) for s in sizes]


def _rate(kernel: str, slowdown: float, some: Sequence[Decided]) -> Rate:
    n = len(some)
    count = {d: sum(x.decision == d for x in some) for d in Decision}
    accepted = count[Decision.ACCEPTED]
    logs = np.array([math.log1p(x.gain) for x in some if x.zygotes])
    levels = {k: [x.seconds for x in some if x.kernel == k and x.seconds > 0] for k in {x.kernel for x in some}}
    spreads = [float(np.percentile(v, 95) / np.percentile(v, 5)) - 1 for v in levels.values() if v]
    return Rate(
        kernel, slowdown, n, accepted, count[Decision.REJECTED], count[Decision.UNDECIDED],
        proportion_lower(accepted, n, _BOUND) if n else 0.0,
        proportion_upper(accepted, n, _BOUND) if n else 1.0,
        math.expm1(float(np.median(logs))) if len(logs) else 0.0,
        1.2533 * float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf,  # of a median
        sum(x.took for x in some) / n if n else 0.0,
        sum(x.zygotes for x in some) / n if n else 0.0,
        sum(x.waited for x in some) / n if n else 0.0,
        sum(x.reason == RejectReason.TOO_NOISY and not x.audited for x in some),
        sum(x.audited and x.decision != Decision.ACCEPTED for x in some),
        max(spreads, default=0.0),
    )
