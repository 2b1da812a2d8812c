"""A run's thinking again, from what it recorded: the same prompts to the byte, the same templates, without a model."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kforge.agent import assignments, prompts
from kforge.agent.caller import Caller
from kforge.agent.calls import CallFailure, Reply, Request, Role
from kforge.agent.contracts import numerics_of
from kforge.agent.drafting import PARTS
from kforge.agent.idea_log import IdeaLog
from kforge.agent.ideas import Idea
from kforge.agent.providers.replay import Replay
from kforge.agent.providers.router import Router
from kforge.agent.thinking import Assignment, End, Ending, think
from kforge.agent.transcripts import load
from kforge.core.errors import KforgeError
from kforge.core.trial import NumericsClass
from kforge.tuner.proposals import Proposal


@dataclass(frozen=True)
class Replayed:
    """An idea thought again. ``prompts``: calls whose prompt was the recorded one to the byte. ``difference``: "" when
    it came to the same template or end."""

    idea: Idea
    prompts: int
    came_to: str
    difference: str


@dataclass(frozen=True)
class Stale:
    """A role's system text that this version would write in another way than the run did; replays use the run's."""

    role: Role


class _Counting:
    """Answers from the record; counts those that were given."""

    def __init__(self, run: Path) -> None:
        self._caller = Caller(Router.of(Replay(run)))
        self.answered = 0

    def call(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        answer = self._caller.call(request, cancel)
        self.answered += isinstance(answer, Reply)
        return answer


def replay(run: Path) -> Iterator[Replayed]:
    """Every idea of the run that came to an end, in order. Raises KforgeError where the folder cannot be replayed."""
    log = IdeaLog.open(run)
    if not log.begun:
        raise KforgeError(f"{run} holds no ideas of a model; give the folder of a run with --agent")
    systems = recorded_systems(run)
    with tempfile.TemporaryDirectory(prefix="kforge-replay-") as folder:
        root = Path(folder) / "templates"
        shutil.copytree(run / "templates" / PARTS, root / PARTS)
        for idea in log.ideas:
            if idea.number in log.begun and (idea.number in log.offered or idea.number in log.ended):
                job = assignments.from_json(log.begun[idea.number], idea, run)
                yield _again(dataclasses.replace(job, systems=systems), log, run, root)


def stale_systems(run: Path) -> list[Stale]:
    """Raises KforgeError where nothing was recorded."""
    log = IdeaLog.open(run)
    jobs = [assignments.from_json(log.begun[i.number], i, run) for i in log.ideas if i.number in log.begun]
    if not jobs:
        return []
    there = recorded_systems(run)
    target, threads = jobs[0].target, jobs[0].threads
    relaxed = numerics_of(jobs[0].task.problem.operator) is NumericsClass.RELAXED  # as of all tasks of a run
    now = {role: prompts.system(role, target, threads, relaxed) for role in there}
    return [Stale(role) for role in Role if role in there and there[role] != now[role]]


def recorded_systems(run: Path) -> Mapping[Role, str]:
    """The system text of each role that was called."""
    return {transcript.request.role: transcript.request.system for transcript in load(run)}


def _again(job: Assignment, log: IdeaLog, run: Path, root: Path) -> Replayed:
    caller = _Counting(run)
    result = think(job, caller, root, threading.Event())
    number = job.idea.number
    came_to = result.template.path if isinstance(result, Proposal) else f"{result.how.value}: {result.reason}"
    return Replayed(job.idea, caller.answered, came_to, _difference(result, log, number))


def _difference(result: Proposal | Ending, log: IdeaLog, number: int) -> str:
    offered, ended = log.offered.get(number), log.ended.get(number)
    if isinstance(result, Ending):
        if ended is not None and (ended.how, ended.reason) == (result.how, result.reason):
            return ""
        template = f"the template {offered.path}" if offered else "nothing"
        was = f"{ended.how.value}: {ended.reason}" if ended else template
        return f"it ended ({result.how.value}: {result.reason}); recorded was {was}"
    if ended is not None and ended.how is End.DUPLICATE:  # of one that was worked out beside it
        return ""
    if offered is None:
        return f"it came to {result.template.path}; recorded was {ended.how.value if ended else 'nothing'}"
    if (offered.path, offered.template_hash) != (result.template.path, result.template.hash):
        return f"its template {result.template.path} is not the recorded {offered.path}"
    return ""
