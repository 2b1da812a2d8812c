"""The evidence sheet: what is known of a task, as figures. The same measurements give the same sheet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kforge.agent import ideas as tree
from kforge.agent.contracts import Contract, contract_of
from kforge.agent.failures import told
from kforge.agent.ideas import Calibration, Idea, Result
from kforge.agent.readings import best_readings, fastest, reading
from kforge.agent.rolling import rolled
from kforge.agent.transfer import Transfer
from kforge.backends.templates import Template
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import FailureClass, Timing, Verdict
from kforge.operators import get
from kforge.targets.roofline import time_limit
from kforge.tuner.plan import Bucket
from kforge.tuner.proposals import Inspected, LoopSeen, Outcome, Situation, Tried
from kforge.tuner.report_names import short_template

_MOST_POINTS = 8
_MOST_FAILURES = 8
_MOST_REPORTS = 3
_MOST_LINES = 48  # of a loop
_MATTERS = 0.01  # importance of a parameter that is worth a line


@dataclass(frozen=True)
class TimeFacts:
    """Of one call: the median of a search's batches and their interquartile range as a share of it. ``alike``: slower
    than the best of its bucket by so little that the two cannot be told apart."""

    seconds: float
    spread: float
    alike: bool = False


@dataclass(frozen=True)
class BucketFacts:
    """One shape that the model calls. Times in seconds a call. ``share``: of the task's time now, None before anything
    was measured; ``bound_by``: "memory" or the peak that the limit is drawn from; ``limit`` 0: unknown; ``least``: no
    call takes less, the limit or an empty call; ``alike``: other points that cannot be told from the best."""

    name: str
    phase: str
    calls: tuple[tuple[str, float], ...]  # mode, calls per step
    share: float | None
    best: TimeFacts | None
    by: str  # the point that is best
    alike: int
    limit: float
    bound_by: str
    least: float
    streamed_bytes: int
    hot_bytes: int
    operations: tuple[tuple[str, int], ...]

    @property
    def reached(self) -> float | None:
        """Share of the least time."""
        return self.least / self.best.seconds if self.best and self.least else None


@dataclass(frozen=True)
class TemplateFacts:
    """A template that competes. ``times``: in the order of the buckets, None where nothing of it ran."""

    name: str
    summary: str
    params: tuple[str, ...]
    points: int  # tried
    times: tuple[TimeFacts | None, ...]


@dataclass(frozen=True)
class PointFacts:
    name: str
    times: tuple[TimeFacts | None, ...]


@dataclass(frozen=True)
class LoopFacts:
    """``mix``: class, count of instructions. ``lines``: the loop with its repetitions rolled up; empty for all but the
    first of a point."""

    instructions: int
    mix: tuple[tuple[str, int], ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ReportFacts:
    """Of the point that is best in ``buckets``. ``loops``: the innermost ones, what computes most first."""

    point: str
    buckets: tuple[str, ...]
    compiler: str
    text_bytes: int
    spills: int
    loops: tuple[LoopFacts, ...]


@dataclass(frozen=True)
class FailureFacts:
    point: str
    kind: str
    told: str
    count: int  # of points of this template that failed so


@dataclass(frozen=True)
class IdeaFacts:
    """``made_from``: a template's name, "" for a new one. ``became``: what happened to it, in words."""

    id: str
    template: str
    made_from: str
    bottleneck: str
    move: str
    predicted: float
    gain: float | None
    became: str


@dataclass(frozen=True)
class LessonFacts:
    """What an earlier run taught, in words. ``number``: in the registry that it was recalled from."""

    number: int
    told: str


@dataclass(frozen=True)
class Sheet:
    """``share``: of a step that the task could still give back. ``compared``: points that ``importances`` come from."""

    contract: Contract
    target: Target
    threads: int
    share: float
    empty_call: TimeFacts | None
    buckets: tuple[BucketFacts, ...]
    templates: tuple[TemplateFacts, ...]
    points: tuple[PointFacts, ...]
    importances: tuple[tuple[str, float], ...]
    compared: int
    reports: tuple[ReportFacts, ...]
    failures: tuple[FailureFacts, ...]
    ideas: tuple[IdeaFacts, ...]
    calibration: Calibration | None
    lessons: tuple[LessonFacts, ...] = ()
    transfer: Transfer | None = None


def sheet(situation: Situation, ideas: Sequence[Idea]) -> Sheet:
    """Of a task at one moment. Nothing in it comes from the shapes, seeds or inputs of checks."""
    task, clock, empty = situation.task, _Clock(situation), tree.empty_call(situation)
    done = tree.results(ideas, situation)
    importances = sorted(situation.importances.shares.items(), key=lambda item: (-item[1], item[0]))
    return Sheet(
        contract_of(task.workload(task.buckets[0], DEFAULT_ROWS)),
        situation.target,
        situation.threads,
        tree.promise(situation),
        TimeFacts(empty.seconds, 0.0) if empty else None,  # the least of its batches
        tuple(_bucket(bucket, situation, clock) for bucket in task.buckets),
        tuple(_template(template, situation, clock) for template in situation.templates),
        tuple(PointFacts(t.point.name, clock.times([t])) for t in situation.tried[:_MOST_POINTS]),
        tuple((name, value) for name, value in importances if value >= _MATTERS),
        situation.importances.points,
        _reports(situation, clock),
        _failures(situation.failures),
        tuple(_idea(result, situation, done) for result in done),
        tree.calibration(done),
    )


class _Clock:
    """A task's times, each held against the best of its bucket."""

    def __init__(self, situation: Situation) -> None:
        self.keys = [bucket.workload.key for bucket in situation.task.buckets]
        self._empty = tree.empty_call(situation)
        self._best = best_readings(situation.tried, self._empty)

    def times(self, tried: Iterable[Tried]) -> tuple[TimeFacts | None, ...]:
        """The fastest of these points in each bucket."""
        found = fastest(tried)
        return tuple(self._facts(key, found[key]) if key in found else None for key in self.keys)

    def alike(self, key: str, tried: Iterable[Tried]) -> int:
        """How many of these points cannot be told from the best of the bucket, itself left out."""
        facts = [self._facts(key, found[key]) for point in tried if key in (found := fastest([point]))]
        return sum(one.alike for one in facts)

    def _facts(self, key: str, timing: Timing) -> TimeFacts:
        mine, best = reading(timing, self._empty), self._best.get(key)
        alike = best is not None and mine.seconds > best.seconds and mine.like(best)
        return TimeFacts(timing.seconds, timing.spread, alike)


def _bucket(bucket: Bucket, situation: Situation, clock: _Clock) -> BucketFacts:
    workload = situation.task.workload(bucket, DEFAULT_ROWS)  # other panels differ in their padding alone
    key = bucket.workload.key
    cost = get(workload.problem.operator).cost(workload)
    try:
        bound_by = time_limit(cost, situation.target, situation.threads).bound_by
    except KforgeError:  # the target has no figure for it
        bound_by = ""
    best = _best(key, situation.tried)
    share = tree.shares(situation, tree.best_seconds(situation.tried)).get(key)
    return BucketFacts(workload.point, workload.phase.value, bucket.calls, share,
                       clock.times([best])[clock.keys.index(key)] if best else None, best.point.name if best else "",
                       clock.alike(key, situation.tried), situation.limits.get(key, 0.0), bound_by,
                       tree.least_seconds(situation, key), cost.streamed_bytes, cost.hot_bytes, cost.operations)


def _best(key: str, tried: Sequence[Tried]) -> Tried | None:
    """The first of the fastest points of a bucket."""
    ran = [(timing.seconds, n) for n, point in enumerate(tried) if (timing := fastest([point]).get(key)) is not None]
    return tried[min(ran)[1]] if ran else None


def _template(template: Template, situation: Situation, clock: _Clock) -> TemplateFacts:
    own = [t for t in situation.tried if t.template_hash == template.hash]
    params = tuple(f"{p.name} in {', '.join(str(c) for c in p.choices)} (default {p.default})" for p in template.params)
    return TemplateFacts(short_template(template.path), template.summary, params, len(own), clock.times(own))


def _reports(situation: Situation, clock: _Clock) -> tuple[ReportFacts, ...]:
    """Of the best point of each bucket, the bucket that costs most first."""
    share = tree.shares(situation, tree.best_seconds(situation.tried))
    names = {bucket.workload.key: bucket.workload.point for bucket in situation.task.buckets}
    best: dict[str, Tried] = {}
    served: dict[str, list[str]] = {}
    for key in sorted(clock.keys, key=lambda key: (-share.get(key, 0.0), clock.keys.index(key))):
        if (found := _best(key, situation.tried)) is not None:
            best.setdefault(found.point.name, found)
            served.setdefault(found.point.name, []).append(names[key])
    looked = [(name, situation.inspect(best[name])) for name in list(best)[:_MOST_REPORTS]]
    return tuple(_report(name, served[name], seen) for name, seen in looked if seen is not None)


def _report(point: str, buckets: Sequence[str], seen: Inspected) -> ReportFacts:
    loops = tuple(_loop(loop, n == 0) for n, loop in enumerate(seen.loops))
    report = seen.report
    return ReportFacts(point, tuple(buckets), report.compiler, report.text_bytes, report.spills, loops)


def _loop(loop: LoopSeen, whole: bool) -> LoopFacts:
    return LoopFacts(len(loop.lines), tuple(loop.mix), rolled(loop.lines, _MOST_LINES) if whole else ())


def _failures(failures: Sequence[Tried]) -> tuple[FailureFacts, ...]:
    """One of each template and class, the one that is told in the fewest words."""
    groups: dict[tuple[str, str], list[FailureFacts]] = {}
    for tried in failures:
        failed = next((t.failure for _, t in sorted(tried.trials.items()) if t.failure is not None), None)
        if failed is not None and failed.kind is not FailureClass.HARNESS:  # which is not the kernel's
            facts = FailureFacts(tried.point.name, failed.kind.value, told(failed), 1)
            groups.setdefault((tried.template_hash, failed.kind.value), []).append(facts)
    least = [(min(group, key=lambda f: (len(f.told), f.point)), len(group)) for group in groups.values()]
    return tuple(FailureFacts(f.point, f.kind, f.told, count) for f, count in least[:_MOST_FAILURES])


def _idea(result: Result, situation: Situation, done: Sequence[Result]) -> IdeaFacts:
    proposal = result.outcome.proposal
    names = {t.hash: short_template(t.path) for t in situation.templates}
    names |= {r.outcome.proposal.template.hash: short_template(r.outcome.proposal.template.path) for r in done}
    return IdeaFacts(proposal.id, short_template(proposal.template.path), names.get(proposal.parent, ""),
                     proposal.bottleneck, proposal.move, proposal.predicted, result.gain, _became(result, situation))


def _became(result: Result, situation: Situation) -> str:
    outcome = result.outcome
    if not result.seconds:
        failed = outcome.failure
        return f"failed ({failed.kind.value}): {told(failed)}" if failed else "it waits for its trials"
    verdicts = dict.fromkeys(_verdict(verdict) for verdict in outcome.verdicts)
    judged = f"; judged in pairs: {', '.join(verdicts)}" if verdicts else ""
    same = f"; all of them the machine code of `{twin}`" if (twin := _twin(outcome, situation)) else ""
    return f"{len(outcome.tried)} points tried{'' if result.settled else ' so far'}{same}{judged}"


def _verdict(verdict: Verdict) -> str:
    """The gain is over what serves, which need not be the best that the search had."""
    why = f" ({verdict.reason.value})" if verdict.reason else ""
    paired = f" at {100 * verdict.gain:+.1f} % over what serves" if verdict.pairs else ""
    return f"{verdict.decision.value}{why}{paired}"


def _twin(outcome: Outcome, situation: Situation) -> str:
    """A template that was there before, of whose points the machine code is that of all of this one's; "": none."""
    proposed = [other.proposal.template.hash for other in situation.outcomes]
    later = set(proposed[proposed.index(outcome.proposal.template.hash) :])
    mine = _code(outcome.tried)
    before = [template for template in situation.templates if template.hash not in later]
    return next((short_template(other.path) for other in before
                 if mine and mine <= _code(t for t in situation.tried if t.template_hash == other.hash)), "")


def _code(tried: Iterable[Tried]) -> set[str]:
    """Hashes of the machine code of what ran."""
    ran = [trial for point in tried for trial in point.trials.values() if trial.ok]
    return {trial.artifact_hash for trial in ran if trial.artifact_hash}
