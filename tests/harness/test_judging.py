"""From measurements to a verdict: the audit decides what batches would accept, and stale limits reject nobody."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from harness_kernels import WORKLOAD, candidate, with_scratch

from kforge.core.trial import Candidate, Decision, RejectReason, Verdict
from kforge.core.workload import Workload
from kforge.harness.agreement import Agreement, Claim, agree
from kforge.harness.audit import AuditSample
from kforge.harness.judge import Rules
from kforge.harness.judging import Judging, Question
from kforge.harness.pairs import PairedSample
from kforge.harness.timing import PAIRS, Plan

CALL = 1e-5  # seconds of a candidate's call
FAST, SLOW = candidate(), with_scratch("64")


def sampled(saved: np.ndarray, spared: np.ndarray) -> AuditSample:
    return AuditSample("w", tuple(saved.tolist()), tuple(spared.tolist()), CALL, CALL, 100, 10)


@dataclass(frozen=True)
class Bench:
    """Measures a candidate whose batches claim ``gain`` and whose audited calls save ``real`` of a call's time."""

    gain: float
    real: float
    noise: float = 0.01  # of a block of audited calls, as a share of a call
    limit: float = 0.0
    limit_now: float = 0.0

    def compare(self, candidate: Candidate, incumbent: Candidate, workload: Workload, *, pairs: int, zygotes: int,
                first_zygote: int, plan: Plan) -> PairedSample:
        rng = np.random.default_rng(first_zygote)
        numbers = tuple(z for z in range(first_zygote, first_zygote + zygotes) for _ in range(pairs))
        logs = tuple((np.log1p(self.gain) + rng.normal(0, 0.002, len(numbers))).tolist())
        return PairedSample(workload.key, logs, numbers, (0.01,) * zygotes, (0.0,) * zygotes, CALL,
                            CALL * (1 + self.gain))

    def audit(self, candidate: Candidate, incumbent: Candidate, workload: Workload, *, seconds: float, zygotes: int,
              first_zygote: int, thorough: bool) -> AuditSample:
        rng = np.random.default_rng([first_zygote, 1])
        saved = rng.normal(self.real * CALL, self.noise * CALL, 8 * zygotes)
        return sampled(saved, saved)

    def limit_seconds(self, workload: Workload, *, fresh: bool = False) -> float:
        return self.limit_now if fresh else self.limit


def verdict(bench: Bench) -> Verdict:
    return Judging(bench, Question(FAST, SLOW, [WORKLOAD], Rules(), 10, PAIRS)).verdict()


def test_a_gain_that_the_audit_sees_is_accepted_with_it() -> None:
    told = verdict(Bench(gain=0.3, real=0.3))
    assert told.decision is Decision.ACCEPTED and told.audit is not None, told.text
    assert told.audit.lower < 0.3 < told.audit.upper and "the audit shows" in told.text


def test_a_gain_that_single_calls_do_not_have_is_rejected() -> None:
    told = verdict(Bench(gain=0.3, real=0.0))
    assert told.decision is Decision.REJECTED and told.reason is RejectReason.AUDIT, told.text


def test_what_the_audit_cannot_tell_from_nothing_stays_undecided() -> None:
    told = verdict(Bench(gain=0.3, real=0.15, noise=5.0))
    assert told.decision is Decision.UNDECIDED and told.reason is RejectReason.TOO_NOISY, told.text


def test_a_limit_that_went_stale_costs_nobody_a_win() -> None:
    told = verdict(Bench(gain=0.3, real=0.3, limit=2 * CALL, limit_now=CALL / 2))
    assert told.decision is Decision.ACCEPTED, told.text


def test_faster_than_the_limit_of_this_minute_is_believed_only_after_the_audit() -> None:
    above = Bench(gain=0.3, real=0.3, limit=2 * CALL, limit_now=2 * CALL)
    told = verdict(above)
    assert told.decision is Decision.ACCEPTED and "limit measured just now" in told.text
    told = verdict(dataclasses.replace(above, real=0.0))
    assert told.decision is Decision.UNDECIDED and told.reason is RejectReason.ABOVE_ROOFLINE, told.text


@pytest.mark.parametrize("claimed", [0.05, 0.3])
def test_how_often_the_audit_errs(claimed: float) -> None:
    """At the noise at which it may just decide: a standard error of a quarter of the claim."""
    rng = np.random.default_rng(int(claimed * 100))
    claim = Claim(CALL, claimed * CALL, 1)

    def share(real: float, agreement: Agreement) -> float:
        found = 0
        for _ in range(1000):
            saved = rng.normal(real * CALL, claimed / 4 * CALL * np.sqrt(24), 24)
            found += agree([claim], [sampled(saved, saved)]).agreement is agreement
        return found / 1000

    assert share(claimed, Agreement.REFUTED) <= 0.02
    assert share(0.0, Agreement.CONFIRMED) <= 0.03
    assert share(claimed, Agreement.CONFIRMED) >= 0.9


def test_a_saving_counts_as_far_as_clock_and_processors_both_show_it() -> None:
    claim = Claim(CALL, 0.3 * CALL, 1)
    rng = np.random.default_rng(5)
    real, none = rng.normal(0.3 * CALL, 0.01 * CALL, 24), rng.normal(0.0, 0.01 * CALL, 24)
    assert agree([claim], [sampled(real, real)]).agreement is Agreement.CONFIRMED
    for saved, spared in ((real, none), (none, real)):
        assert agree([claim], [sampled(saved, spared)]).agreement is Agreement.REFUTED
