"""Kernels that were built and checked without their device: kept, told of, never served, and first in line."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from kforge.core.kernel import KernelRecord, KernelState, Tier
from kforge.core.layout import Layout
from kforge.core.trial import Failure, FailureClass, NumericsClass, Timing, Trial, TrialState
from kforge.core.workload import Problem
from kforge.registry.database import Registry
from kforge.registry.lookup import Asker, lookup
from kforge.registry.maintenance import collect, verify
from kforge.registry.trials import recorded
from kforge.registry.validators import Toolchain

PROBLEM = Problem.of("linear", K=576, N=960, weight="q4_1", act="a8", epilogue="none", bias=0, rows=32)
ASKER = Asker("far", Toolchain(1, (("linear", 1),), ()), siblings=("cousin",))
EVIDENCE: dict[str, object] = {"checked": "qemu"}


def bucket(_problem, dynamic):
    return {"M": dynamic["M"]}


def untimed(m: int = 1, *, target: str = "far", run: str = "r1", params=(("m_tile", 4),)) -> KernelRecord:
    return KernelRecord(
        candidate_hash=f"c{m}{params[0][1]}", problem=PROBLEM, bucket=(("M", m),), target_identity=target,
        target_name=f"{target}-chip", operator_version=1, abi_version=1, numerics=NumericsClass.EXACT,
        layouts=(("w", Layout.of("panel", rows=32, gate_up=0)),), backend="cpp", template="cpp/linear/a8.cc.j2",
        template_hash="t", params=params, source_hash=hashlib.sha256(b"src").hexdigest(),
        artifact_hash=hashlib.sha256(b"code").hexdigest(), compiler="g++ 12.2.0", seconds=0.0, default_seconds=0.0,
        gain=0.0, gain_lower=0.0, run=run)


@pytest.fixture
def registry(tmp_path):
    with Registry.open(tmp_path / "registry.db") as opened:
        for run in ("r1", "r2"):
            opened.begin_run(run, "model", "far", tmp_path)
        yield opened


def test_a_checked_kernel_is_kept_with_its_files_and_says_that_it_was_not_timed(registry):
    number = registry.keep_checked(untimed(), b"code", "src", "qemu", EVIDENCE)
    assert registry.keep_checked(untimed(), b"code", "src", "qemu", EVIDENCE) == number
    kernel = registry.snapshot().kernels[0]
    assert (kernel.state, kernel.seconds, kernel.gain) == (KernelState.CHECKED, 0.0, 0.0)
    event = registry.events(number)[0]
    assert event.reason == "built for far-chip, checked by qemu, not timed: no such device was here"
    assert event.evidence == EVIDENCE
    assert verify(registry, registry.snapshot()).sound
    assert collect(registry).files == 0  # its files are not garbage
    assert registry.store.get(kernel.artifact_hash) == b"code"


def test_a_checked_kernel_is_never_served_and_the_answer_says_why(registry):
    registry.keep_checked(untimed(), b"code", "src", "qemu", EVIDENCE)
    snapshot = registry.snapshot()
    for asker in (ASKER, dataclasses.replace(ASKER, target_identity="cousin", siblings=("far",))):
        answer = lookup(snapshot, PROBLEM, {"M": 1}, asker, bucket)
        assert answer.tier is Tier.DEFAULT and answer.kernel is None and not answer.promised
    reasons = [step.reason for step in lookup(snapshot, PROBLEM, {"M": 1}, ASKER, bucket).trace]
    assert any("built and checked, never timed" in reason for reason in reasons)
    assert snapshot.unserved(PROBLEM, "far") == ()  # it does not wait for the engine either


def test_the_newest_runs_kernels_wait_first_in_the_order_in_which_they_were_kept(registry):
    for run, tile in (("r1", 1), ("r1", 2), ("r2", 8), ("r2", 4)):
        registry.keep_checked(untimed(run=run, params=(("m_tile", tile),)), b"code", "src", "qemu", EVIDENCE)
    registry.keep_checked(untimed(target="elsewhere"), b"code", "src", "qemu", EVIDENCE)
    waiting = registry.snapshot().waiting(PROBLEM, ("far", "cousin"))
    assert [dict(k.params)["m_tile"] for k in waiting] == [8, 4, 1, 2]
    registry.set_state(waiting[0].id, KernelState.RETIRED, "timed")
    assert len(registry.snapshot().waiting(PROBLEM, ("far",))) == 3


@pytest.mark.parametrize(("changes", "state"), [
    ({"checked": "qemu"}, TrialState.CHECKED),
    ({"timing": Timing(1e-5, 0.0, 1, 1)}, TrialState.TIMED),
    ({"checked": "qemu", "failure": Failure(FailureClass.INEXACT, "differs")}, TrialState.FAILED),
    ({}, TrialState.FAILED),
])
def test_how_far_a_trial_came(changes, state):
    trial = Trial("c", "w", (), "t", **changes)
    assert trial.state is state
    assert trial.ok is (state is TrialState.TIMED)


def test_a_checked_trial_is_recorded_without_a_time_and_seeds_no_search(registry):
    from pathlib import Path

    trial = Trial("c1", f"{PROBLEM.key}@M=1", (("m_tile", 4),), "cpp/linear/a8.cc.j2", checked="qemu",
                  predicted_seconds=1e-6)
    registry.record_trial("r1", "far", PROBLEM, trial)
    found = recorded(Path(registry.name))[0]
    assert found.seconds is None and found.failure is None
    assert registry.tried(PROBLEM, "far") == []
