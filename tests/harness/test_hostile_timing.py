"""Kernels that are right wherever they are checked and want to be timed as faster than they are: none is accepted."""

from __future__ import annotations

import itertools

import hostile_kernels
import pytest
from harness_kernels import WORKLOAD, candidate

from kforge.core.target import Target
from kforge.core.trial import Decision, FailureClass, RejectReason
from kforge.harness import Harness
from kforge.harness.judge import Rules
from kforge.harness.timing import Plan
from kforge.harness.zygote import Child, Usage

QUICK = Plan(batch_seconds=0.004, batches=5, handovers=20)
RULES = Rules(looks=(5, 8))


@pytest.mark.parametrize("name", ["REMEMBERS_IN_SCRATCH", "REPAIRS", "WALKS_UP"])
def test_what_an_earlier_call_left_is_worth_nothing(harness: Harness, name: str) -> None:
    verdict = harness.judge(getattr(hostile_kernels, name), candidate(), [WORKLOAD], rules=RULES, pairs=6, plan=QUICK)
    assert verdict.decision is not Decision.ACCEPTED, verdict.text


def test_answers_kept_on_the_stack_win_in_batches_and_lose_in_the_audit(harness: Harness) -> None:
    cheat = hostile_kernels.REMEMBERS_ON_DEAD_STACK
    honest, quick = harness.evaluate(candidate(), WORKLOAD).timing, harness.evaluate(cheat, WORKLOAD).timing
    assert honest is not None and quick is not None and quick.seconds < honest.seconds / 2
    verdict = harness.judge(cheat, candidate(), [WORKLOAD], rules=RULES, pairs=6, plan=QUICK)
    assert verdict.decision is not Decision.ACCEPTED, verdict.text
    # A noisy machine may leave the gain itself undecided; where it is not, the audit must be what refuses it.
    assert verdict.decision is Decision.UNDECIDED or verdict.reason is RejectReason.AUDIT, verdict.text


def test_a_batch_that_ends_early_is_not_believed(target: Target) -> None:
    with Harness(target, 1) as alone:
        cheat = hostile_kernels.ENDS_THE_BATCH_EARLY
        verdict = alone.judge(cheat, candidate(), [WORKLOAD], rules=RULES, pairs=6, plan=QUICK)
    assert verdict.decision is not Decision.ACCEPTED, verdict.text


def test_a_thread_that_goes_on_after_the_call_is_found_out(harness: Harness, threads: int) -> None:
    if threads == 1:
        pytest.skip("one CPU")
    trial = harness.evaluate(hostile_kernels.COMPUTES_AFTER_DONE, WORKLOAD, check=False)
    assert trial.failure is not None
    assert trial.failure.kind in (FailureClass.BACKGROUND, FailureClass.TIMEOUT), trial.failure


def test_a_process_that_runs_without_work_fails(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = itertools.count()
    monkeypatch.setattr(Child, "usage", lambda self: Usage(next(ran) * 0.002, 0.0))
    trial = harness.evaluate(candidate(), WORKLOAD, check=False)
    assert trial.failure is not None and trial.failure.kind is FailureClass.BACKGROUND, trial
