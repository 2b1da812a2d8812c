"""Pairs in forks of one zygote, and what the judge makes of real ones. The machine may be busy: effects are large."""

from __future__ import annotations

import statistics

from harness_kernels import BUSY, WORKLOAD, after, before, candidate

from kforge.core.trial import Decision, RejectReason
from kforge.harness import Harness
from kforge.harness.judge import Rules
from kforge.harness.pairs import ContestantFailure, PairedSample
from kforge.harness.timing import Plan

QUICK = Plan(batch_seconds=0.004, batches=5, handovers=20)
# Goes through the whole work several times more.
SLOW = before("for (int again = 0; again < 8; ++again) { asm volatile(\"\" ::: \"memory\");").source.replace(
    "/* after */", "}")


def test_the_faster_side_is_named_by_the_sign(harness: Harness) -> None:
    sample = harness.compare(candidate(), candidate(SLOW), WORKLOAD, pairs=8, zygotes=2, plan=QUICK)
    assert isinstance(sample, PairedSample), sample
    assert len(sample.log_ratios) in (4, 6, 8, 10, 12, 14, 16) and set(sample.zygotes) == {0, 1}
    assert len(sample.zygotes) == len(sample.log_ratios)
    assert statistics.median(sample.log_ratios) > 0.5
    assert len(sample.overheads) == 2
    assert sample.incumbent_seconds > sample.seconds > 0


def test_the_judge_accepts_what_is_much_faster_and_rejects_what_is_much_slower(harness: Harness) -> None:
    rules = Rules(looks=(5, 8), noise=BUSY)
    won = harness.judge(candidate(), candidate(SLOW), [WORKLOAD], rules=rules, pairs=6, plan=QUICK)
    assert won.decision is Decision.ACCEPTED, won.text
    assert won.gain > 0.5 and won.lower > 0 and won.zygotes >= 5
    lost = harness.judge(candidate(SLOW), candidate(), [WORKLOAD], rules=rules, pairs=6, plan=QUICK)
    # Much slower, or, on a machine so busy that even this is not sure, not shown to be faster: refused either way.
    assert lost.decision is Decision.REJECTED, lost.text
    assert lost.reason in (RejectReason.SLOWER, RejectReason.GAIN_TOO_SMALL), lost.text


def test_a_candidate_that_is_wrong_in_timed_calls_is_rejected(harness: Harness) -> None:
    wrong = after("if (l->thread == 0) out[7] += 1;")
    verdict = harness.judge(wrong, candidate(), [WORKLOAD], pairs=4, plan=QUICK)
    assert verdict.decision is Decision.REJECTED and verdict.reason is RejectReason.FAILED
    other = harness.judge(candidate(), wrong, [WORKLOAD], pairs=4, plan=QUICK)
    assert other.decision is Decision.UNDECIDED and "incumbent" in other.text


def test_a_comparison_names_the_side_that_failed(harness: Harness) -> None:
    crashing = after("*(volatile int *)0 = 1;")
    result = harness.compare(candidate(), crashing, WORKLOAD, pairs=2, plan=QUICK)
    assert isinstance(result, ContestantFailure) and result.hash == crashing.hash
