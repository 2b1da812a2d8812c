"""What became of a run's problems, in words for a reader who knows neither the journal nor the judge's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from kforge.core.trial import Decision, RejectReason, TrialState, Verdict
from kforge.core.workload import Problem
from kforge.tuner.promotion import EngineVerdict
from kforge.tuner.run_view import BucketView, RunView, TaskView

PROMOTED = "promoted"
_NOT_PROMOTED = "accepted, not promoted"
_VISIBLY = 0.99  # of the served layout's best time: what is less looks faster to a reader

_WHY = {
    RejectReason.FAILED: "the challenger failed when it was judged",
    RejectReason.SLOWER: "slower when judged",
    RejectReason.NOT_SIGNIFICANT: "a gain was not shown",
    RejectReason.SHAPE_REGRESSION: "slower at another shape of the bucket",
    RejectReason.TOO_NOISY: "the machine was too noisy to tell",
    RejectReason.ABOVE_ROOFLINE: "it seemed faster than the hardware's limit, which is not believed",
}


def bucket_outcome(run: RunView, task: TaskView, bucket: BucketView) -> str:
    """What serves a bucket after the run, and why nothing else does."""
    verdicts = [j.verdict for j in run.judged if j.bucket == bucket.key]
    if run.offline:
        right = sum(p.bucket == bucket.key and p.trial.state is TrialState.CHECKED for p in run.tried)
        return f"built, checked, not timed: {right} right" if right else "nothing built and right"
    if any(v.decision is Decision.ACCEPTED for v in verdicts):
        return engine_state(run, task) or _NOT_PROMOTED
    if task.accepted is None and not verdicts:
        return "not judged"
    said = [_layout(run, task, bucket)]
    if verdicts:
        said.append(f"incumbent stays: {why_not(max(verdicts, key=lambda v: v.gain))}")
    return "; ".join(filter(None, said)) or "nothing faster than what serves"


def why_not(verdict: Verdict) -> str:
    """Why the judge did not accept a candidate."""
    if verdict.reason is RejectReason.AUDIT:
        single = f", {_percent(verdict.audit.gain)}" if verdict.audit else ""
        return f"batches showed {_percent(verdict.gain)}, single calls on fresh inputs did not (audit{single})"
    if verdict.reason is RejectReason.GAIN_TOO_SMALL:
        return f"less than the {100 * max(verdict.floor, 0.01):.1f} % that count on this machine"
    return _WHY[verdict.reason] if verdict.reason else verdict.text


def engine_states(run: RunView) -> dict[str, str]:
    """By problem (without its layout), for those with kernels that a judge accepted: whether the engine took them, in
    one sentence for all modes."""
    states = {task.key: state for task in run.tasks if (state := engine_state(run, task))}
    for key in dict.fromkeys(Problem.parse(v.problem).without_layout.key for v in run.engine):
        # Kernels of an earlier run, or handed in, of problems that this run did not tune.
        states.setdefault(key, _state(run.engine_of(key), []))
    return states


def engine_state(run: RunView, task: TaskView) -> str | None:
    """The same of one of the run's own problems; None where nothing was accepted."""
    won = {j.bucket for j in run.judged if j.task == task.key and j.verdict.decision is Decision.ACCEPTED}
    verdicts = run.engine_of(task.key)
    if not won and not verdicts:
        return None
    if run.options.operator:
        return PROMOTED if run.finished else "accepted, to be promoted when the run ends"
    calls = dict.fromkeys(mode for b in task.buckets if b.key in won for mode, _ in b.calls)
    asked = {v.mode for v in verdicts}
    missing = [mode for mode in calls if mode not in asked]
    if not run.finished and (missing or not verdicts):
        return "accepted, the engine has not run yet"
    if _changed(task) and not _kept(run, task):
        return f"{_NOT_PROMOTED}: it needs rows {task.rows}, {_fate(run, task)}"
    return _state(verdicts, missing)


def _state(verdicts: Sequence[EngineVerdict], missing: Sequence[str]) -> str:
    """``missing``: modes in which the engine should have run."""
    if refused := [v.reason for v in verdicts if not v.promotes]:
        return f"{_NOT_PROMOTED}: {'; '.join(refused)}"
    if missing or not verdicts:
        return f"{_NOT_PROMOTED}: the time did not reach the engine{' in ' if missing else ''}{', '.join(missing)}"
    return PROMOTED


def _layout(run: RunView, task: TaskView, bucket: BucketView) -> str:
    """What a panel height has to do with the outcome, "" for nothing."""
    if _changed(task) and _kept(run, task):
        return f"served with rows {task.rows} instead of {task.before}, with which the engine was faster"
    serving = task.before if _changed(task) else task.rows
    best: dict[int, float] = {}
    for p in run.tried:
        if p.bucket == bucket.key and p.seconds:
            best[p.rows] = min(p.seconds, best.get(p.rows, p.seconds))
    fastest = min(best, key=lambda rows: best[rows], default=serving)
    elsewhere = fastest is not None and best.get(fastest, 0.0) < _VISIBLY * best.get(serving or 0, 0.0)
    if _changed(task):
        if elsewhere and fastest == task.rows:
            return f"faster only with rows {fastest}, {_fate(run, task)}"
        return f"judged with rows {task.rows}, {_fate(run, task)}"
    return f"faster only with rows {fastest}, too little over all buckets" if elsewhere else ""


def _changed(task: TaskView) -> bool:
    """Whether the search chose another layout than it found."""
    return task.rows is not None and task.before is not None and task.rows != task.before


def _kept(run: RunView, task: TaskView) -> bool:
    return any(v.keeps for v in run.layouts if v.problem == task.key)


def _fate(run: RunView, task: TaskView) -> str:
    """Of a changed layout that does not serve."""
    met = [v for v in run.layouts if v.problem == task.key]
    if met:
        same = all(g.same_tokens for v in met for g in v.gains)
        return "with which the engine was not faster" if same else "with which the engine's tokens differed"
    return "whose engine run the time did not reach" if run.finished else "whose engine run is still to come"


def _percent(gain: float) -> str:
    return f"{100 * gain:+.1f} %"
