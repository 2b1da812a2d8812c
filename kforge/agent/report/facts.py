"""A run with models as typed facts: the tree of ideas, the calls, what was measured of each idea, the money."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from kforge.agent.calls import CallFailure, Usage
from kforge.agent.ideas import Calibration, Idea
from kforge.agent.report.money import Money
from kforge.agent.transcripts import Transcript
from kforge.core.trial import Verdict
from kforge.tuner.run_view import RunView


class State(StrEnum):
    """Where an idea stands. Closed: reports colour by it."""

    OPEN = "open"  # it was asked for, and no end of it is on record
    STOPPED = "stopped"  # the analyst saw nothing that is worth a trial
    UNANSWERED = "unanswered"  # a model gave no answer
    UNUSABLE = "unusable"  # what was written is no template, or is lost
    DUPLICATE = "duplicate"
    WAITING = "waiting"  # nothing of it was tried yet
    FAILED = "failed"  # nothing of it ran
    NO_GAIN = "no gain"  # in the search
    FASTER = "faster"  # in the search, and not judged
    REJECTED = "not accepted"  # by the judge
    ACCEPTED = "accepted"
    PROMOTED = "promoted"


@dataclass(frozen=True)
class Call:
    """A call on record, in ``file``, which is named from the run's folder on."""

    file: str
    transcript: Transcript

    @property
    def idea(self) -> str:
        """Id of the idea that it was made for, "" where the record does not say."""
        return self.transcript.request.idea

    @property
    def usage(self) -> Usage:
        return self.transcript.answer.usage

    @property
    def outcome(self) -> str:
        answer, first = self.transcript.answer, self.transcript.first
        said = f"{answer.kind.value}: {answer.reason}" if isinstance(answer, CallFailure) else "answered"
        return f"{said} (asked again after: {first.kind.value})" if first else said


@dataclass(frozen=True)
class Measured:
    """An idea's template at one bucket, in seconds a call; None where nothing ran.

    ``share``: of a step. ``before``: the task's best when the idea was asked for. ``shipped``: the best of all other
    templates that no model wrote, in the whole run. ``verdict``: the best that the judge said of its kernels.
    """

    bucket: str
    share: float
    before: float | None
    best: float | None
    shipped: float | None
    verdict: Verdict | None


@dataclass(frozen=True)
class IdeaReport:
    """``why``: a sentence on the state. ``template``: path below the run's templates, "" where none came of it;
    ``made_from``: the path of the one that it changes. ``gain``: measured as ``ideas.gain`` has it; ``settled``:
    whether it counts for the predictions. ``ideas``: those that began at its template, repairs among them."""

    idea: Idea
    state: State
    why: str
    template: str
    made_from: str
    bottleneck: str
    move: str
    predicted: float | None
    gain: float | None
    settled: bool
    points: int
    trials: int
    measured: tuple[Measured, ...]
    calls: tuple[Call, ...]
    ideas: tuple[IdeaReport, ...]

    @property
    def usd(self) -> float | None:
        """None where some of its tokens have no price."""
        known = [call.transcript.usd for call in self.calls]
        return None if None in known else sum(usd for usd in known if usd is not None)

    @property
    def tokens(self) -> int:
        return sum(call.usage.total for call in self.calls)

    def walk(self) -> Iterator[IdeaReport]:
        yield self
        for idea in self.ideas:
            yield from idea.walk()


@dataclass(frozen=True)
class Branch:
    """Ideas that began at a template that no idea of the run had made; ``template`` "": at nothing."""

    template: str
    ideas: tuple[IdeaReport, ...]


@dataclass(frozen=True)
class TaskReport:
    key: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class AgentReport:
    """``agent``: as the run was asked for it. ``calls``: in the order in which they were answered."""

    run: RunView
    agent: str
    tasks: tuple[TaskReport, ...]
    calls: tuple[Call, ...]
    money: Money
    calibration: Calibration | None

    @cached_property
    def ideas(self) -> tuple[IdeaReport, ...]:
        """By number."""
        found = [i for task in self.tasks for branch in task.branches for idea in branch.ideas for i in idea.walk()]
        return tuple(sorted(found, key=lambda report: report.idea.number))

    @property
    def path(self) -> Path:
        return self.run.path


def weights(run: RunView, task: str) -> dict[str, float]:
    """Bucket -> share of a step per second of its call: by the default, which is the first that is timed."""
    buckets = next((t.buckets for t in run.tasks if t.key == task), ())
    found = {}
    for bucket in buckets:
        first = next((p.seconds for p in run.tried if p.bucket == bucket.key), None)
        found[bucket.key] = bucket.share / first if first else 0.0
    return found


def fastest(run: RunView, task: str, templates: Iterable[str], *, without: bool = False) -> Mapping[str, float]:
    """Bucket -> best seconds of these templates of a task, or of all others."""
    named = set(templates)
    best: dict[str, float] = {}
    for p in run.tried:
        if p.task == task and p.seconds and (p.trial.template in named) != without:
            best[p.bucket] = min(p.seconds, best.get(p.bucket, p.seconds))
    return best
