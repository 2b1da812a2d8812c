"""The evidence sheet: what is known of a task, as figures. The same measurements give the same sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kforge.agent import ideas as tree
from kforge.agent.contracts import Contract, contract_of
from kforge.agent.failures import told
from kforge.agent.ideas import Calibration, Idea, Result
from kforge.backends.templates import Template
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import CompilerReport, FailureClass
from kforge.operators import get
from kforge.targets.roofline import time_limit
from kforge.tuner.plan import Bucket
from kforge.tuner.proposals import Situation, Tried

_MOST_POINTS = 8
_MOST_FAILURES = 8
_MOST_REPORTS = 3
_MATTERS = 0.01  # importance of a parameter that is worth a line


@dataclass(frozen=True)
class BucketFacts:
    """One shape that the model calls. Times in seconds a call. ``share``: of the task's time now, None before anything
    was measured; ``bound_by``: "memory" or the peak that the limit is drawn from; ``limit`` 0: unknown."""

    name: str
    phase: str
    calls: tuple[tuple[str, float], ...]  # mode, calls per step
    share: float | None
    best: float | None
    by: str  # the point that is best
    limit: float
    bound_by: str
    streamed_bytes: int
    hot_bytes: int
    operations: tuple[tuple[str, int], ...]

    @property
    def reached(self) -> float | None:
        """Share of the limit."""
        return self.limit / self.best if self.best and self.limit else None


@dataclass(frozen=True)
class TemplateFacts:
    """A template that competes. ``seconds``: in the order of the buckets, None where nothing of it ran."""

    name: str
    summary: str
    params: tuple[str, ...]
    points: int  # tried
    seconds: tuple[float | None, ...]


@dataclass(frozen=True)
class PointFacts:
    name: str
    seconds: tuple[float | None, ...]


@dataclass(frozen=True)
class ReportFacts:
    """``mix``: instruction class, share of all instructions. ``loop``: the loop that computes most, as instructions."""

    point: str
    compiler: str
    text_bytes: int
    spills: int
    mix: tuple[tuple[str, float], ...]
    loop: tuple[str, ...] = ()


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
    """``share``: of a step that the task could still give back."""

    contract: Contract
    target: Target
    threads: int
    share: float
    buckets: tuple[BucketFacts, ...]
    templates: tuple[TemplateFacts, ...]
    points: tuple[PointFacts, ...]
    importances: tuple[tuple[str, float], ...]
    reports: tuple[ReportFacts, ...]
    failures: tuple[FailureFacts, ...]
    ideas: tuple[IdeaFacts, ...]
    calibration: Calibration | None
    lessons: tuple[LessonFacts, ...] = ()


def sheet(situation: Situation, ideas: Sequence[Idea]) -> Sheet:
    """Of a task at one moment. Nothing in it comes from the shapes, seeds or inputs of checks."""
    task = situation.task
    done = tree.results(ideas, situation)
    keys = [bucket.workload.key for bucket in task.buckets]
    importances = sorted(situation.importances.items(), key=lambda item: (-item[1], item[0]))
    return Sheet(
        contract_of(task.workload(task.buckets[0], DEFAULT_ROWS)),
        situation.target,
        situation.threads,
        situation.share,
        tuple(_bucket(bucket, situation) for bucket in task.buckets),
        tuple(_template(template, situation, keys) for template in situation.templates),
        tuple(PointFacts(t.point.name, _seconds(t, keys)) for t in situation.tried[:_MOST_POINTS]),
        tuple((name, value) for name, value in importances if value >= _MATTERS),
        _reports(situation),
        _failures(situation.failures),
        tuple(_idea(result, situation, done) for result in done),
        tree.calibration(done),
    )


def short(path: str) -> str:
    """A template's name without its folder and endings."""
    return path.rsplit("/", 1)[-1].split(".", maxsplit=1)[0]


def _bucket(bucket: Bucket, situation: Situation) -> BucketFacts:
    workload = situation.task.workload(bucket, DEFAULT_ROWS)  # other panels differ in their padding alone
    key = bucket.workload.key
    cost = get(workload.problem.operator).cost(workload)
    try:
        bound_by = time_limit(cost, situation.target, situation.threads).bound_by
    except KforgeError:  # the target has no figure for it
        bound_by = ""
    ran = [(t.trials[key].timing.seconds, n, t.point.name) for n, t in enumerate(situation.tried)  # type: ignore[union-attr]
           if key in t.trials and t.trials[key].ok]
    best = min(ran, default=None)
    share = tree.shares(situation, tree.best_seconds(situation.tried)).get(key)
    return BucketFacts(workload.point, workload.phase.value, bucket.calls, share, best[0] if best else None,
                       best[2] if best else "", situation.limits.get(key, 0.0), bound_by, cost.streamed_bytes,
                       cost.hot_bytes, cost.operations)


def _template(template: Template, situation: Situation, keys: Sequence[str]) -> TemplateFacts:
    own = [t for t in situation.tried if t.template_hash == template.hash]
    best = tree.best_seconds(own)
    params = tuple(f"{p.name} in {', '.join(str(c) for c in p.choices)} (default {p.default})" for p in template.params)
    return TemplateFacts(short(template.path), template.summary, params, len(own), tuple(best.get(k) for k in keys))


def _seconds(tried: Tried, keys: Sequence[str]) -> tuple[float | None, ...]:
    best = tree.best_seconds([tried])
    return tuple(best.get(key) for key in keys)


def _reports(situation: Situation) -> tuple[ReportFacts, ...]:
    """Of the fastest points of the fastest templates, one each."""
    found: dict[str, ReportFacts] = {}
    for tried in situation.tried:
        if tried.report is not None and tried.template_hash not in found and len(found) < _MOST_REPORTS:
            found[tried.template_hash] = _report(tried, tried.report)
    return tuple(found.values())


def _report(tried: Tried, report: CompilerReport) -> ReportFacts:
    total = sum(count for _, count in report.instruction_mix) or 1
    mix = sorted(((name, count / total) for name, count in report.instruction_mix), key=lambda m: (-m[1], m[0]))
    loop = tuple(tried.loop)
    return ReportFacts(tried.point.name, report.compiler, report.text_bytes, report.spills, tuple(mix), loop)


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
    names = {t.hash: short(t.path) for t in situation.templates}
    names |= {r.outcome.proposal.template.hash: short(r.outcome.proposal.template.path) for r in done}
    return IdeaFacts(proposal.id, short(proposal.template.path), names.get(proposal.parent, ""), proposal.bottleneck,
                     proposal.move, proposal.predicted, result.gain, _became(result))


def _became(result: Result) -> str:
    outcome = result.outcome
    if not result.seconds:
        failed = outcome.failure
        return f"failed ({failed.kind.value}): {told(failed)}" if failed else "it waits for its trials"
    verdicts = [f"{v.decision.value} ({v.reason.value})" if v.reason else v.decision.value for v in outcome.verdicts]
    judged = f"; judged: {', '.join(dict.fromkeys(verdicts))}" if verdicts else ""
    return f"{len(outcome.tried)} points tried{'' if result.settled else ' so far'}{judged}"
