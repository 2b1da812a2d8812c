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
    """Holds the audits of a bucket's shapes, one sample each, against what was claimed of them."""
    weights = [claim.calls for claim in claims]
    claimed = sum(claim.saved * claim.calls for claim in claims)
    gain = claimed / sum(claim.seconds * claim.calls for claim in claims)
    saved = sum(weight * float(np.mean(sample.saved)) for weight, sample in zip(weights, samples, strict=True))
    variance = sum(weight**2 * float(np.var(sample.saved, ddof=1)) / len(sample.saved)
                   for weight, sample in zip(weights, samples, strict=True))
    blocks = min(len(sample.saved) for sample in samples)
    half = student_t_quantile(1.0 - ERROR, blocks - 1) * math.sqrt(variance)
    seconds = sum(weight * sample.seconds for weight, sample in zip(weights, samples, strict=True))
    bounds = (saved, saved - half, saved + half)
    pairs = sum(sample.pairs for sample in samples)
    found = Audit(saved / seconds, (saved - half) / seconds, (saved + half) / seconds, pairs, samples[0].seconds)
    if claimed <= 0:  # nothing to hold it against: the saving must be there
        agreement = Agreement.CONFIRMED if saved > half else Agreement.UNCLEAR
        return Audited(agreement, found, math.nan, math.nan, math.nan)
    by_seconds = [bound / claimed for bound in bounds]
    by_ratio = [_log_gain(bound / seconds) / math.log1p(gain) for bound in bounds]
    share, lower, upper = max(by_seconds, by_ratio)
    if lower > 0 and share >= _LEAST_SHARE:
        agreement = Agreement.CONFIRMED
    elif upper < _LEAST_SHARE:
        agreement = Agreement.REFUTED
    else:
        agreement = Agreement.UNCLEAR
    return Audited(agreement, found, share, lower, upper)


def _log_gain(gain: float) -> float:
    return math.log1p(max(gain, -0.99))
