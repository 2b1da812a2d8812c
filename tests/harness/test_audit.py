"""What the audit makes of gains that are real, and of gains that come from remembering or from not working."""

from __future__ import annotations

from harness_kernels import BUSY, RIGHT, WORKLOAD, candidate

from kforge.core.trial import Candidate, Decision
from kforge.harness import Harness
from kforge.harness.agreement import Agreement, Claim, agree
from kforge.harness.audit import AuditSample
from kforge.harness.judge import Rules
from kforge.harness.pairs import ContestantFailure
from kforge.harness.timing import Plan

QUICK = Plan(batch_seconds=0.004, batches=5, handovers=20)
RULES = Rules(looks=(5, 8), noise=BUSY)


def repeated(times: str) -> Candidate:
    """The right kernel, which goes through its work ``times`` times."""
    return candidate(RIGHT.replace("/* before */", f"for (int again = 0; again < {times}; ++again) {{"
                                   'asm volatile("" ::: "memory");').replace("/* after */", "}"))


def audited(harness: Harness, of: Candidate, against: Candidate) -> AuditSample | ContestantFailure:
    timing = harness.evaluate(of, WORKLOAD, check=False).timing
    return harness.audit(of, against, WORKLOAD, seconds=timing.seconds if timing else 1e-5, zygotes=2)


def test_the_audit_sees_what_a_call_saves(harness: Harness) -> None:
    sample = audited(harness, candidate(), repeated("4"))
    assert isinstance(sample, AuditSample), sample
    assert agree([Claim(sample.seconds, 2 * sample.seconds, 1)], [sample]).agreement is Agreement.CONFIRMED
    assert sample.verified >= 4
    slower = audited(harness, repeated("4"), candidate())
    assert isinstance(slower, AuditSample), slower
    assert agree([Claim(sample.seconds, 2 * sample.seconds, 1)], [slower]).agreement is Agreement.REFUTED


def test_an_accepted_verdict_carries_its_audit(harness: Harness) -> None:
    verdict = harness.judge(candidate(), repeated("4"), [WORKLOAD], rules=RULES, pairs=6, plan=QUICK)
    assert verdict.decision is Decision.ACCEPTED, verdict.text
    assert verdict.audit is not None and verdict.audit.gain > 0.5 and "the audit shows" in verdict.text
