"""Whether an audit agrees with a gain that batches claim. Pure statistics, no clock, no process.

Compared are seconds saved per call, not ratios: single calls find cold caches and branch predictors, which adds to
both sides' times and leaves their difference.

A claim that comes from skipping or remembering saves nothing in single calls; an honest one saves what it claims. The
audit goes on until half of the claim lies ``ERROR``-surely on one side of what was found, or until its time is up:
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


@dataclass(frozen=True)
class Claim:
    """What batches say of one shape: seconds of an incumbent's call less those of a candidate's. ``calls``: its weight,
    how often a model calls it.
    """

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
    saved = sum(weight * float(np.mean(sample.saved)) for weight, sample in zip(weights, samples, strict=True))
    variance = sum(weight**2 * float(np.var(sample.saved, ddof=1)) / len(sample.saved)
                   for weight, sample in zip(weights, samples, strict=True))
    blocks = min(len(sample.saved) for sample in samples)
    half = student_t_quantile(1.0 - ERROR, blocks - 1) * math.sqrt(variance)
    seconds = sum(weight * sample.seconds for weight, sample in zip(weights, samples, strict=True))
    found = Audit(saved / seconds, (saved - half) / seconds, (saved + half) / seconds,
                  sum(sample.pairs for sample in samples), samples[0].seconds)
    if claimed <= 0:  # nothing to hold it against: the saving must be there
        agreement = Agreement.CONFIRMED if saved - half > 0 else Agreement.UNCLEAR
        return Audited(agreement, found, math.nan, math.nan, math.nan)
    if saved - half > 0 and saved >= claimed / 2:
        agreement = Agreement.CONFIRMED
    elif saved + half < claimed / 2:
        agreement = Agreement.REFUTED
    else:
        agreement = Agreement.UNCLEAR
    return Audited(agreement, found, saved / claimed, (saved - half) / claimed, (saved + half) / claimed)
