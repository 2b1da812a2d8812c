"""What a proposer of templates and a run have to say to each other. A proposer need not be a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kforge.backends.templates import Template
from kforge.core.target import Target
from kforge.core.trial import CompilerReport, Failure, Timing, Trial, Verdict
from kforge.tuner.plan import Task
from kforge.tuner.points import Point


@dataclass(frozen=True)
class Proposal:
    """A template that nobody has tried yet, for one task.

    ``id``: unique in the run. ``parent``: hash of the template that it was made from, "" where there is none.
    ``predicted``: the gain in the task's time that its author promises, as a ratio minus one.
    """

    id: str
    task: str  # Task.problem.key
    template: Template
    parent: str
    bottleneck: str
    move: str
    predicted: float
    author: str  # who to name as proposer: "builtin", or provider and model


@dataclass(frozen=True)
class Tried:
    """A point of some template with all that was measured of it: bucket -> its trial."""

    point: Point
    template_hash: str
    trials: Mapping[str, Trial]


@dataclass(frozen=True)
class LoopSeen:
    """An innermost loop of a kernel's machine code. ``mix``: class of instruction, count; the largest first."""

    lines: Sequence[str]
    mix: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Inspected:
    """What the compiler made of a point. ``loops``: those that compute on vectors, what computes most first."""

    report: CompilerReport
    loops: Sequence[LoopSeen]


@dataclass(frozen=True)
class Importances:
    """Parameter -> share of the spread of log times that it explains and no other parameter does, together at most 1.

    ``points``: so many were compared; where those are too few for so many parameters, there are no shares.
    """

    points: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)


def _not_there(_: Tried) -> None:
    return None


@dataclass(frozen=True)
class Outcome:
    """What became of a proposal so far. ``failure``: of the first point that failed, when none worked."""

    proposal: Proposal
    tried: Sequence[Tried]
    failure: Failure | None
    verdicts: Sequence[Verdict]


@dataclass(frozen=True)
class Situation:
    """A task as a proposer sees it. No shape or seed that checks use, only the workloads that the model needs.

    ``limits``: bucket -> seconds that the target's measured limits allow. ``weights``: bucket -> share of a step per
    second of its call. ``share``: of a step that the task could still give back. ``inspect`` looks into the code of a
    point, when asked to. ``empty_call``: of a call whose kernel does nothing, timed as all others; None: unknown.
    """

    task: Task
    target: Target
    threads: int
    templates: Sequence[Template]  # that compete now, the fastest first
    tried: Sequence[Tried]  # the best first
    failures: Sequence[Tried]
    outcomes: Sequence[Outcome]  # of proposals for this task, in their order
    limits: Mapping[str, float]
    weights: Mapping[str, float]
    share: float
    importances: Importances = Importances()
    empty_call: Timing | None = None
    inspect: Callable[[Tried], Inspected | None] = field(default=_not_there, compare=False, repr=False)


class Proposer(Protocol):
    """Where templates come from while a run searches. Calls return at once: what takes long happens elsewhere."""

    def ask(self, situation: Situation) -> bool:
        """Whether it will come up with something for this task; it may already be at work."""
        ...

    def take(self) -> list[Proposal]:
        """Proposals that are ready."""
        ...

    def tell(self, outcome: Outcome) -> None:
        """Once a proposal's share of trials is spent, and again when it was judged."""
        ...

    def trials(self, proposal: str) -> int:
        """How many points of the proposal of this id deserve a trial in all, after what was told."""
        ...

    @property
    def working(self) -> bool:
        """Whether something is still on its way."""
        ...

    def close(self) -> None:
        """Ends calls that are still open."""
        ...
