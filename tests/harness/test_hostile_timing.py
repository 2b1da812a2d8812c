"""Kernels that are right wherever they are checked and want to be timed as faster than they are: none is accepted."""

from __future__ import annotations

import itertools

import hostile_kernels
import pytest
from harness_kernels import WORKLOAD, candidate

from kforge.core.target import Target
from kforge.core.trial import Candidate, Decision, FailureClass
from kforge.harness import Harness
from kforge.harness.agreement import Agreement, Claim, agree
from kforge.harness.audit import AuditSample
from kforge.harness.judge import Rules
from kforge.harness.pairs import ContestantFailure
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
    claim = claimed(harness, cheat)
    sample = harness.audit(cheat, candidate(), WORKLOAD, seconds=claim.seconds)
    assert isinstance(sample, AuditSample), sample
    assert agree([claim], [sample]).agreement is not Agreement.CONFIRMED
    verdict = harness.judge(cheat, candidate(), [WORKLOAD])
    assert verdict.decision is not Decision.ACCEPTED, verdict.text


def test_a_batch_that_ends_early_wins_and_its_audit_finds_calls_that_were_not_made(target: Target) -> None:
    cheat = hostile_kernels.ENDS_THE_BATCH_EARLY
    with Harness(target, 1) as alone:
        claim = claimed(alone, cheat)
        # Several calls a command, as for a kernel that is as fast as this one pretends to be.
        found = alone.audit(cheat, candidate(), WORKLOAD, seconds=claim.seconds / 10)
        verdict = alone.judge(cheat, candidate(), [WORKLOAD])
    assert isinstance(found, ContestantFailure) and found.hash == cheat.hash
    assert "audited call" in found.failure.reason
    assert verdict.decision is not Decision.ACCEPTED, verdict.text


def claimed(harness: Harness, cheat: Candidate) -> Claim:
    """What the cheat's batches say, and that they say much."""
    honest, quick = harness.evaluate(candidate(), WORKLOAD).timing, harness.evaluate(cheat, WORKLOAD).timing
    assert honest is not None and quick is not None and quick.seconds < honest.seconds / 2
    return Claim(quick.seconds, honest.seconds - quick.seconds, 1)


def test_a_thread_that_goes_on_after_the_call_is_found_out(harness: Harness, threads: int) -> None:
    if threads == 1:
        pytest.skip("one CPU")
    trial = harness.evaluate(hostile_kernels.COMPUTES_AFTER_DONE, WORKLOAD, check=False)
    assert trial.failure is not None
    assert trial.failure.kind in (FailureClass.BACKGROUND, FailureClass.TIMEOUT), trial.failure


def test_a_process_that_runs_without_work_fails(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = itertools.count()
    monkeypatch.setattr(Child, "usage", lambda self: Usage((next(ran) * 0.002,), 0.0))
    trial = harness.evaluate(candidate(), WORKLOAD, check=False)
    assert trial.failure is not None and trial.failure.kind is FailureClass.BACKGROUND, trial
