"""Whether an audit agrees with a gain that batches claim. Pure statistics, no clock, no process.

A claim that comes from skipping or remembering saves nothing in audited calls; an honest one saves what it claims, up
to two things that are nobody's fault. Audited calls find cold caches and branch predictors, which adds to both sides'
times: seconds saved then stay as claimed, their ratio to the whole does not. And other load may have made batches
longer than audited calls, or these longer than batches: then the ratio stays, the seconds do not. So the better of the
two counts.

The audit goes on until half of the claim lies ``ERROR``-surely on one side of what was found, or until its time is up:
then at a standard error of a quarter of the claim both an honest claim is refuted and a false one confirmed with a
probability of about ``ERROR``; where noise is larger than that, nothing is confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kforge.core.trial import Audit
from kforge.harness.audit import AuditSample
from kforge.harness.quantiles import student_t_quantile

ERROR = 0.01
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class Claim:
    """What batches say of one shape: seconds of a candidate's call, and how many less than an incumbent's they are.
    ``calls``: its weight, how often a model calls it.
    """

    seconds: float
    saved: float
    calls: float


class Agreement(StrEnum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNCLEAR = "unclear"  # too noisy to tell the claim from nothing


@dataclass(frozen=True)
class Audited:
    """``share`` of the claimed saving that single calls show, with its bounds."""

    agreement: Agreement
    audit: Audit
    share: float
    share_lower: float
    share_upper: float


def agree(claims: Sequence[Claim], samples: Sequence[AuditSample]) -> Audited:
    """Holds the audits of a bucket's shapes, one sample each, against what was claimed of them.

    The clock and the processors' account are each held against it, and the one that shows less counts.
    """
    claimed = sum(claim.saved * claim.calls for claim in claims)
    gain = claimed / sum(claim.seconds * claim.calls for claim in claims)
    weights = [claim.calls for claim in claims]
    clocked = _Saving.of(weights, [s.saved for s in samples], [s.seconds for s in samples])
    counted = _Saving.of(weights, [s.spared for s in samples], [s.ran for s in samples])
    if claimed <= 0:  # nothing to hold it against: the saving must be there
        less = min(clocked, counted, key=lambda saving: saving.saved - saving.half)
        agreement = Agreement.CONFIRMED if less.saved > less.half else Agreement.UNCLEAR
        return Audited(agreement, less.told(samples), math.nan, math.nan, math.nan)
    found = min((clocked, counted), key=lambda saving: saving.shares(claimed, gain))
    share, lower, upper = found.shares(claimed, gain)
    if lower > 0 and share >= _LEAST_SHARE:
        agreement = Agreement.CONFIRMED
    elif upper < _LEAST_SHARE:
        agreement = Agreement.REFUTED
    else:
        agreement = Agreement.UNCLEAR
    return Audited(agreement, found.told(samples), share, lower, upper)


@dataclass(frozen=True)
class _Saving:
    """Of a bucket by one account: seconds saved with the half-width of their bounds, and a candidate's seconds."""

    saved: float
    half: float
    seconds: float

    @classmethod
    def of(cls, weights: Sequence[float], blocks: Sequence[Sequence[float]], seconds: Sequence[float]) -> _Saving:
        saved = sum(weight * float(np.mean(each)) for weight, each in zip(weights, blocks, strict=True))
        variance = sum(weight**2 * float(np.var(each, ddof=1)) / len(each)
                       for weight, each in zip(weights, blocks, strict=True))
        t = student_t_quantile(1.0 - ERROR, min(map(len, blocks)) - 1)
        whole = sum(weight * each for weight, each in zip(weights, seconds, strict=True))
        return cls(saved, t * math.sqrt(variance), whole)

    @property
    def bounds(self) -> list[float]:
        """What was saved, then its lower and its upper bound."""
        return [self.saved, self.saved - self.half, self.saved + self.half]

    def shares(self, claimed: float, gain: float) -> list[float]:
        """Of the claim, by seconds or by ratio."""
        by_seconds = [bound / claimed for bound in self.bounds]
        by_ratio = [_log_gain(bound / self.seconds) / math.log1p(gain) for bound in self.bounds]
        return max(by_seconds, by_ratio)

    def told(self, samples: Sequence[AuditSample]) -> Audit:
        gain, lower, upper = (bound / self.seconds for bound in self.bounds)
        return Audit(gain, lower, upper, sum(sample.pairs for sample in samples), samples[0].seconds)


def _log_gain(gain: float) -> float:
    return math.log1p(max(gain, -0.99))
