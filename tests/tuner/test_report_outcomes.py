"""A reader learns what became of each problem without knowing the judge's vocabulary, and never two things at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kforge.core.trial import Audit, Decision, RejectReason, Timing, Trial, Verdict
from kforge.tuner.layouts import LayoutGain, LayoutVerdict
from kforge.tuner.options import TuneOptions
from kforge.tuner.promotion import EngineVerdict
from kforge.tuner.report_outcomes import bucket_outcome, engine_states
from kforge.tuner.run_view import BucketView, Judged, Roof, RunView, TaskView, TriedPoint

KEY = "linear(K=576,N=960,act=a8,bias=0,epilogue=none,weight=q4_1)"
LAID = "linear(K=576,N=960,act=a8,bias=0,epilogue=none,rows={},weight=q4_1)"
DECODE, PREFILL = "decode batch 1 context 512", "prefill 512"
BUCKET = BucketView(f"{KEY}@M=1", 0.3, 5e-5, ((DECODE, 30.0), (PREFILL, 1.0)))
TASK = TaskView(KEY, 96, (BUCKET,), (), 32, 0, 32)
RUN = RunView("r", Path("r"), TuneOptions("m"), "host", True, 1.0, Roof(0.0, ()), (TASK,), (), (), (), (), (), 0.0)
ACCEPTED = Verdict(Decision.ACCEPTED, "c", "d", 0.2, 0.18, 0.22, 50, 5, 0.01)
ENGINE = EngineVerdict(LAID.format(32), DECODE, 0.02, 0.005, 0.04, True, 100, 40)


def rejected(reason: RejectReason, **changes) -> Verdict:
    return dataclasses.replace(ACCEPTED, decision=Decision.REJECTED, reason=reason, **changes)


def run(task: TaskView = TASK, verdict: Verdict | None = None, times: dict[int, float] | None = None, **changes):
    judged = (Judged(KEY, BUCKET.key, task.rows or 0, verdict),) if verdict else ()
    tried = tuple(
        TriedPoint(n, 0.0, KEY, BUCKET.key, rows, Trial("c", BUCKET.key, (), "t", Timing(seconds, 0.01, 5, 40)))
        for n, (rows, seconds) in enumerate((times or {}).items())
    )
    return dataclasses.replace(RUN, tasks=(task,), judged=judged, tried=tried, **changes)


def outcome(view: RunView) -> str:
    return bucket_outcome(view, view.tasks[0], BUCKET)


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (
            rejected(RejectReason.AUDIT, gain=0.04, audit=Audit(0.003, -0.01, 0.02, 20, 1e-5)),
            "incumbent stays: batches showed +4.0 %, single calls on fresh inputs did not (audit, +0.3 %)",
        ),
        (
            rejected(RejectReason.GAIN_TOO_SMALL, floor=0.021),
            "incumbent stays: less than the 2.1 % that count on this machine",
        ),
    ],
)
def test_a_refusal_is_a_sentence(verdict: Verdict, says: str):
    assert outcome(run(verdict=verdict)) == says


@pytest.mark.parametrize("reason", RejectReason)
def test_no_reason_is_told_by_its_name_alone(reason: RejectReason):
    told = outcome(run(verdict=rejected(reason))).removeprefix("incumbent stays: ")
    assert " " in told and "_" not in told


def test_nothing_faster_is_said_only_where_nothing_was_faster():
    assert outcome(run(times={32: 5e-5, 64: 5e-5, 16: 6e-5})) == "nothing faster than what serves"
    elsewhere = "faster only with rows 64, too little over all buckets"
    assert outcome(run(times={32: 5e-5, 64: 4e-5, 16: 6e-5})) == elsewhere


@pytest.mark.parametrize(
    ("gain", "same", "says"),
    [
        (-0.01, True, "faster only with rows 64, with which the engine was not faster"),
        (0.05, False, "faster only with rows 64, with which the engine's tokens differed"),
        (0.05, True, "served with rows 64 instead of 32, with which the engine was faster"),
        (None, True, "faster only with rows 64, whose engine run the time did not reach"),
    ],
)
def test_a_changed_layout_says_what_the_engine_said(gain: float | None, same: bool, says: str):
    task = dataclasses.replace(TASK, rows=64)
    gains = () if gain is None else (LayoutVerdict(KEY, 64, 32, (LayoutGain(KEY, DECODE, gain, gain, same, 0.0),)),)
    view = run(task, times={32: 5e-5, 64: 4e-5}, layouts=gains)
    assert outcome(view) == says
    if gain != 0.05 or not same:
        accepted = run(task, ACCEPTED, layouts=gains)
        assert outcome(accepted) == f"accepted, not promoted: it needs rows 64, {says.partition(', ')[2]}"


def test_a_problem_is_promoted_when_every_mode_that_calls_it_agrees_and_otherwise_says_why_not_once():
    both = (ENGINE, dataclasses.replace(ENGINE, mode=PREFILL))
    assert outcome(run(verdict=ACCEPTED, engine=both)) == "promoted"
    slower = (ENGINE, dataclasses.replace(ENGINE, mode=PREFILL, gain=-0.03, lower=-0.05))
    view = run(verdict=ACCEPTED, engine=slower)
    why = "accepted, not promoted: engine -3.0 % in prefill 512 (at least -5.0 %)"
    assert outcome(view) == why
    assert engine_states(view) == {KEY: why}
    assert [v.word for v in slower] == ["not slower", "slower"]


def test_a_mode_that_the_time_did_not_reach_leaves_a_kernel_accepted():
    view = run(verdict=ACCEPTED, engine=(ENGINE,))
    assert outcome(view) == "accepted, not promoted: the time did not reach the engine in prefill 512"
    assert outcome(dataclasses.replace(view, finished=False)) == "accepted, the engine has not run yet"


def test_kernels_that_somebody_handed_in_have_a_state_although_their_problem_was_not_tuned():
    view = dataclasses.replace(RUN, tasks=(), engine=(dataclasses.replace(ENGINE, problem="silu_mul(I=512)"),))
    assert engine_states(view) == {"silu_mul(I=512)": "promoted"}
