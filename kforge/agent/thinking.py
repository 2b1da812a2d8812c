"""One idea from the question to a template: analyst, generator, and repairer while the draft is no template yet."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from kforge.agent import prompts
from kforge.agent.answers import ANALYSE, MEND, WRITE, Analysis, Move, Writing, read
from kforge.agent.calls import CallFailure, CallFailureKind, Message, Reply, Request, Role, Tool
from kforge.agent.contracts import contract_of
from kforge.agent.drafting import Rejected, Source, draft, source_of
from kforge.agent.evidence import Sheet
from kforge.agent.ideas import Idea
from kforge.agent.prompts import Prompt, Shown
from kforge.backends.templates import Template
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.target import Target
from kforge.core.trial import Failure
from kforge.core.workload import stable_hash
from kforge.tuner.plan import Task
from kforge.tuner.proposals import Proposal

REPAIRS = 2  # of one draft
_TOKENS = {Role.ANALYST: 6_000, Role.GENERATOR: 24_000, Role.REPAIRER: 24_000}  # of an answer
_TOOLS: dict[Role, Tool] = {Role.ANALYST: ANALYSE, Role.GENERATOR: WRITE, Role.REPAIRER: MEND}
_MOST_SHOWN = 20_000  # characters of an unusable answer that the model sees again


class Caller(Protocol):
    """What asks models, inside the budget and on the record. Calls come from several threads at once."""

    def call(self, request: Request, cancel: threading.Event) -> Reply | CallFailure: ...


class End(StrEnum):
    """How an idea may end without a template."""

    STOPPED = "stopped"  # the analyst sees nothing that is worth a trial
    CALL = "call"  # a model gave no answer
    UNUSABLE = "unusable"  # what it wrote is no template, after all repairs
    DUPLICATE = "duplicate"  # it means the same as one that is known
    CANCELLED = "cancelled"
    LOST = "lost"  # its template is gone from the run's folder


@dataclass(frozen=True)
class Ending:
    """``final``: no other call of this run can do better."""

    how: End
    reason: str
    final: bool = False


@dataclass(frozen=True)
class Mend:
    """A proposal that failed once it was built, and how."""

    proposal: Proposal
    failure: Failure


@dataclass(frozen=True)
class Assignment:
    """Everything that an idea's prompts depend on, as it was when it was asked for.

    ``shown``: the template of the branch, or the best one as an example. ``sheet`` is None exactly when it is a
    ``mend``. ``known``: templates that must not be written again.
    """

    idea: Idea
    task: Task
    target: Target
    threads: int
    shown: Template | None
    known: Sequence[Template]
    sheet: Sheet | None
    mend: Mend | None
    systems: Mapping[Role, str] = field(default_factory=dict)  # to be used instead: those of the run that is replayed


A = TypeVar("A", Analysis, Writing)


@dataclass(frozen=True)
class _Answer(Generic[A]):
    value: A
    author: str


@dataclass(frozen=True)
class _Purpose:
    """What a template is for, from the analyst."""

    bottleneck: str
    move: str
    predicted: float
    parent: str


def think(job: Assignment, caller: Caller, root: Path, cancel: threading.Event) -> Proposal | Ending:
    """Runs until there is a template or an end. Raises KforgeError or OSError where the run's folder cannot be written.

    Calls are named by what they are about: those of the analyst and the generator by the branch's template (two
    numbers for each idea, the second for an answer that had to be asked for again), those of the repairer by what
    failed.
    """
    return _Thinking(job, caller, root, cancel).run()


class _Thinking:
    def __init__(self, job: Assignment, caller: Caller, root: Path, cancel: threading.Event):
        self.job, self.caller, self.root, self.cancel = job, caller, root, cancel

    def run(self) -> Proposal | Ending:
        job = self.job
        if job.mend is not None:
            failed = job.mend.proposal
            purpose = _Purpose(failed.bottleneck, failed.move, failed.predicted, failed.template.hash)
            rejected = Rejected(job.mend.failure, source_of(failed.template))
            return self._mended(rejected, purpose, failed.template.hash, 0)
        assert job.sheet is not None
        source = source_of(job.shown) if job.shown else None
        analysis = self._analysed(job.sheet, source)
        if isinstance(analysis, Ending):
            return analysis
        if analysis.move is Move.STOP:
            return Ending(End.STOPPED, analysis.evidence)
        answer = self._ask(Role.GENERATOR, job.idea.branch.parent, 2 * job.idea.ordinal, prompts.generator(
            job.sheet, self._shown(source), analysis, job.idea.branch), Writing)
        if isinstance(answer, Ending):
            return answer
        new = analysis.move is Move.WRITE_NEW and not answer.value.edits
        parent = "" if new or job.shown is None else job.shown.hash
        purpose = _Purpose(analysis.bottleneck.value, analysis.change, analysis.predicted_gain, parent)
        return self._drafted(answer, source, purpose, 0)

    def _analysed(self, sheet: Sheet, source: Source | None) -> Analysis | Ending:
        branch = self.job.idea.branch
        prompt = prompts.analyst(sheet, self._shown(source), branch)
        answer = self._ask(Role.ANALYST, branch.parent, 2 * self.job.idea.ordinal, prompt, Analysis)
        return answer if isinstance(answer, Ending) else answer.value

    def _shown(self, source: Source | None) -> Shown | None:
        if source is None:
            return None
        return Shown("to be improved" if self.job.idea.branch.parent else "the best so far, as an example", source)

    def _drafted(self, answer: _Answer[Writing], base: Source | None, purpose: _Purpose,
                 step: int) -> Proposal | Ending:
        job = self.job
        made = draft(answer.value, job.idea.number, base, job.task, job.target, self.root, job.known)
        if isinstance(made, Template):
            return Proposal(job.idea.id, job.task.problem.key, made, purpose.parent, purpose.bottleneck, purpose.move,
                            purpose.predicted, answer.author)
        if made.duplicate:
            return Ending(End.DUPLICATE, made.failure.reason)
        if step >= REPAIRS:
            return Ending(End.UNUSABLE, made.failure.reason)
        about = stable_hash([job.idea.number, step, made.source.hash])
        return self._mended(made, purpose, about, step)

    def _mended(self, rejected: Rejected, purpose: _Purpose, about: str, step: int) -> Proposal | Ending:
        job = self.job
        contract = contract_of(job.task.workload(job.task.buckets[0], DEFAULT_ROWS))
        prompt = prompts.repairer(contract, job.target, job.threads, Shown("the one that failed", rejected.source),
                                  rejected.failure, f"{purpose.bottleneck}: {purpose.move}")
        answer = self._ask(Role.REPAIRER, about, 0, prompt, Writing)
        if isinstance(answer, Ending):
            return answer
        return self._drafted(answer, rejected.source, purpose, step + 1)

    def _ask(self, role: Role, parent: str, ordinal: int, prompt: Prompt, kind: type[A]) -> _Answer[A] | Ending:
        """The answer; one that fits the schema and yet makes no sense is asked for once more."""
        messages: tuple[Message, ...] = (Message("user", prompt.user),)
        wrong = ""
        system = self.job.systems.get(role, prompt.system)
        for attempt in range(2):
            if self.cancel.is_set():
                return Ending(End.CANCELLED, "the run ends")
            request = Request(role, parent, ordinal + attempt, system, messages, _TOOLS[role], _TOKENS[role],
                              self.job.idea.id)
            reply = self.caller.call(request, self.cancel)
            if isinstance(reply, CallFailure):
                how = End.CANCELLED if reply.kind is CallFailureKind.CANCELLED else End.CALL
                return Ending(how, f"{reply.kind.value}: {reply.reason}", reply.final)
            found = read(kind, reply.arguments)
            if not isinstance(found, str):
                return _Answer(found, f"{reply.provider}/{reply.model}")
            wrong = found
            said = json.dumps(dict(reply.arguments), sort_keys=True)[:_MOST_SHOWN]
            messages = (messages[0], Message("assistant", said), Message("user", prompts.again(wrong)))
        return Ending(End.CALL, f"{CallFailureKind.MALFORMED.value}: {wrong}")
