"""Kernels that are right wherever they are checked and want to be timed as faster than they are: none is accepted."""

from __future__ import annotations

import itertools

import hostile_kernels
import pytest
from harness_kernels import WORKLOAD, candidate

from kforge.core.target import Target
from kforge.core.trial import Candidate, Decision, FailureClass
from kforge.harness import Harness
from kforge.harness.judge import Rules
from kforge.harness.pairs import ContestantFailure
from kforge.harness.timing import Plan, Stopwatch
from kforge.harness.zygote import Child, Usage

QUICK = Plan(batch_seconds=0.004, batches=5, handovers=20)
RULES = Rules(looks=(5, 8))


# What disarms each of them. A cheat is held against its disarmed self, since its code may be faster than the plain one.
DISARMED = {
    "REMEMBERS_IN_SCRATCH": ("known[e].key == key", "known[e].key == key + 2"),
    "REMEMBERS_ON_DEAD_STACK": ("known[e].key == key", "known[e].key == key + 2"),
    "REPAIRS": ("same = out[m * os + n] == acc;", "same = out[m * os + n] == acc && M > 1 << 30;"),
    "WALKS_UP": ("M == 4", "M > 1 << 30"),
    "ENDS_THE_BATCH_EARLY": ("calls > 16", "calls > 1 << 30"),
}


def disarmed(name: str) -> Candidate:
    what, to = DISARMED[name]
    source = getattr(hostile_kernels, name).source
    assert what in source
    return candidate(source.replace(what, to))


@pytest.mark.parametrize("name", ["REMEMBERS_IN_SCRATCH", "REMEMBERS_ON_DEAD_STACK", "REPAIRS", "WALKS_UP"])
def test_what_an_earlier_call_left_is_worth_nothing(harness: Harness, name: str) -> None:
    cheat = getattr(hostile_kernels, name)
    verdict = harness.judge(cheat, disarmed(name), [WORKLOAD], rules=RULES, pairs=6, plan=QUICK)
    assert verdict.decision is not Decision.ACCEPTED, verdict.text


def test_an_audit_finds_calls_that_a_batch_which_ends_early_did_not_make(target: Target) -> None:
    cheat = hostile_kernels.ENDS_THE_BATCH_EARLY
    with Harness(target, 1) as alone:
        # Several calls a command, as for a kernel that is as fast as this one pretends to be.
        found = alone.audit(cheat, candidate(), WORKLOAD, seconds=2e-6)
        verdict = alone.judge(cheat, disarmed("ENDS_THE_BATCH_EARLY"), [WORKLOAD])
    assert isinstance(found, ContestantFailure) and found.hash == cheat.hash
    assert "audited call" in found.failure.reason
    assert verdict.decision is not Decision.ACCEPTED, verdict.text


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


def test_a_process_that_was_charged_late_for_a_moment_passes(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a virtual machine's host that holds a processor back: sixteen readings in a row that seem to be work."""
    readings = itertools.count()

    def usage(_: Child) -> Usage:
        return Usage((0.002 * min(max(next(readings) - 4, 0), 16),), 0.0)

    looks: list[object] = []
    watch = Stopwatch._watch
    monkeypatch.setattr(Stopwatch, "_watch", lambda self: looks.append(self) or watch(self))
    monkeypatch.setattr(Child, "usage", usage)
    trial = harness.evaluate(candidate(), WORKLOAD, check=False)
    assert looks
    assert trial.failure is None, trial
