"""What ideas came to, kept beyond their run: lessons are derived from outcomes that were measured, and shown again to
whoever thinks about something like it. Measurement overrules them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kforge.agent import ideas as tree
from kforge.agent.answers import Bottleneck
from kforge.agent.evidence import LessonFacts, Sheet
from kforge.agent.ideas import PROGRESS, Idea, Result, Seconds
from kforge.core.lesson import Evidence, Finding, Judged, Lesson, Subject
from kforge.core.target import Target
from kforge.core.trial import Decision, FailureClass, RejectReason, Verdict
from kforge.core.workload import Workload
from kforge.registry.database import Registry
from kforge.registry.lesson_text import told
from kforge.registry.relevance import Asked, relevant
from kforge.targets.family import family
from kforge.targets.roofline import MEMORY
from kforge.tuner.proposals import Outcome, Situation

CLEAR = 0.10  # gain or loss that search timings alone can show: each was taken at its own moment
LEAST_SECONDS = 1e-6  # of a call, below which they show nothing
_SLIPS = (FailureClass.TEMPLATE, FailureClass.COMPILE, FailureClass.HARNESS)  # which say nothing of a move
_OF_MEMORY = {Bottleneck.MEMORY_BANDWIDTH, Bottleneck.MEMORY_LATENCY}
_OF_ARITHMETIC = {Bottleneck.COMPUTE_THROUGHPUT, Bottleneck.INSTRUCTION_OVERHEAD, Bottleneck.DEPENDENCY_CHAINS,
                  Bottleneck.REGISTER_PRESSURE}
_NO_CLASS = {Bottleneck.NOT_YET_WORKING, Bottleneck.NONE}


class Memory:
    """The registry's lessons, as one run learns and recalls them. Calls come from the run's own thread."""

    def __init__(self, registry: Registry, run: str, target: Target):
        self._registry, self._run, self._target = registry, run, target

    def recall(self, sheet: Sheet, task: str, backend: str = "cpp") -> tuple[LessonFacts, ...]:
        """For a task (its problem's key). What only this run has seen of this very task is in the sheet already."""
        asked = Asked(sheet.contract.operator, backend, family(sheet.target), suspected(sheet))
        news = [lesson for lesson in self._registry.lessons() if not self._own(lesson, task)]
        return tuple(LessonFacts(lesson.id, told(lesson)) for lesson in relevant(news, asked))

    def learn(self, idea: Idea, outcome: Outcome, situation: Situation | None) -> None:
        """What was told of an idea's proposal. ``situation``: the last one of its task; None where this process has
        seen none, and then all buckets weigh the same. Raises KforgeError where the registry cannot be written."""
        weights = situation.weights if situation else {bucket: 1.0 for bucket, _ in idea.before}
        result = tree.result_of(idea, outcome, weights, tree.empty_call(situation) if situation else None)
        measured = {candidate for _, candidate in self._registry.recorded(self._run)}
        finding = finding_of(result, weights, measured)
        if finding is None:
            return
        proposal = outcome.proposal
        subject = Subject(proposal.template.operator, proposal.template.backend, family(self._target),
                          proposal.bottleneck, proposal.move)
        trials = self._registry.trial_numbers(self._run, proposal.template.path)
        failure = outcome.failure.kind.value if finding is Finding.FAILED and outcome.failure else ""
        self._registry.learn(subject, Evidence(
            self._run, f"idea-{idea.root:03d}", proposal.task, self._target.name, finding, proposal.predicted,
            result.gain, _by_bucket(result), tuple(_judged(verdict) for verdict in outcome.verdicts), failure, trials))

    def _own(self, lesson: Lesson, task: str) -> bool:
        return all((e.run, e.problem) == (self._run, task) for e in lesson.evidence)


def finding_of(result: Result, weights: Mapping[str, float], measured: Collection[str]) -> Finding | None:
    """What an outcome says of its move: the judge's pairs before the search's timings. None while it says nothing.

    ``measured``: hashes of the candidates that this run has timed. An idea is held against the best of those, so that a
    refusal beside another incumbent says nothing of it.
    """
    outcome = result.outcome
    if not result.settled:
        return None
    if not result.seconds:
        slip = outcome.failure is None or outcome.failure.kind in _SLIPS
        return None if slip else Finding.FAILED
    if not outcome.verdicts:
        return _searched(result, weights)
    if any(verdict.decision is Decision.ACCEPTED for verdict in outcome.verdicts):
        return Finding.GAIN if result.gain is not None and result.gain >= PROGRESS else Finding.OPEN
    refused = all(verdict.decision is Decision.REJECTED and verdict.reason is not RejectReason.FAILED
                  and verdict.incumbent_hash in measured for verdict in outcome.verdicts)
    return Finding.NO_GAIN if refused else Finding.OPEN


def _searched(result: Result, weights: Mapping[str, float]) -> Finding:
    """By timings of the search alone, in the buckets where they can tell anything."""
    before = dict(result.idea.before)
    fit = {bucket for bucket in before
           if min(before[bucket], result.seconds.get(bucket, before[bucket])) >= LEAST_SECONDS}
    gain = tree.gain(_only(result.seconds, fit), _only(before, fit), weights)
    if gain is None or abs(gain) < CLEAR:
        return Finding.OPEN
    return Finding.GAIN if gain > 0 else Finding.NO_GAIN


def _only(seconds: Seconds, buckets: Collection[str]) -> dict[str, float]:
    return {bucket: value for bucket, value in seconds.items() if bucket in buckets}


def _by_bucket(result: Result) -> tuple[tuple[str, float], ...]:
    """How many times as fast as the best before, by the bucket's axes."""
    return tuple((Workload.parse(bucket).point, before / result.seconds[bucket])
                 for bucket, before in result.idea.before if bucket in result.seconds)


def _judged(verdict: Verdict) -> Judged:
    """The first shape is the bucket's own; which others were looked at is nobody's business."""
    bucket = Workload.parse(verdict.per_shape[0][0]).point if verdict.per_shape else ""
    reason = verdict.reason.value if verdict.reason else ""
    return Judged(bucket, verdict.decision.value, reason, verdict.gain, verdict.lower, verdict.pairs)


def suspected(sheet: Sheet) -> frozenset[str]:
    """Bottlenecks that a task may have: those that its ideas named, and those of the limit of its heaviest bucket."""
    heaviest = max(sheet.buckets, key=lambda bucket: bucket.share or 0.0, default=None)
    bound = heaviest.bound_by if heaviest else ""
    of_limit = (_OF_MEMORY if bound == MEMORY else _OF_ARITHMETIC) if bound else set[Bottleneck]()
    return frozenset({*(idea.bottleneck for idea in sheet.ideas), *of_limit} - _NO_CLASS)
