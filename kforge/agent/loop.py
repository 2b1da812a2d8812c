"""The agent as a proposer: ideas are worked out by models while the machine measures, several side by side.

All that a prompt depends on is taken when an idea is asked for or a failure is told, and ideas come out in the order in
which they were asked for. So the same asks and outcomes in the same order give the same prompts, whatever the models'
latency.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kforge.agent import assignments
from kforge.agent import ideas as tree
from kforge.agent.drafting import drafted, meaning_of, root_of
from kforge.agent.evidence import Sheet, sheet
from kforge.agent.idea_log import IdeaLog
from kforge.agent.ideas import Branch, Idea, Rest
from kforge.agent.memory import Memory
from kforge.agent.readings import best_readings
from kforge.agent.thinking import Assignment, Caller, End, Ending, Mend, think
from kforge.agent.transfer import Abroad
from kforge.core.trial import Failure, FailureClass
from kforge.tuner.proposals import Outcome, Proposal, Situation

_NICE = 10  # of threads that think: a tenth of what a kernel gets that is being timed
MENDS = 2  # repairs of what failed once it was built, one after another


@dataclass(frozen=True)
class _Job:
    idea: Idea
    future: Future[Proposal | Ending]


def _give_way() -> None:
    """Drafts are rendered, and streams of answers are read, beside kernels that are being timed."""
    with contextlib.suppress(OSError):  # not every system has a priority for each thread
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(nice, _NICE))


def _to_mend(outcome: Outcome) -> bool:
    """Nothing of it ran, and that is its own doing."""
    if outcome.failure is None or outcome.failure.kind is FailureClass.HARNESS:
        return False
    return not tree.best_seconds(outcome.tried)


class ModelProposer:
    """Implements ``Proposer``. Its own calls come from one thread; ``parallel`` ideas are worked out at once.

    ``run``: the run's folder, in which ideas and templates are kept, and from which a later process goes on.
    ``known``: ids of the proposals that the run's journal holds: after a resume the others are offered again.
    ``memory``: what earlier runs taught; without one nothing is learned.
    ``abroad``: what other targets and backends have.
    """

    def __init__(self, caller: Caller, run: Path, *, parallel: int = 2, known: Collection[str] = (),
                 memory: Memory | None = None, abroad: Abroad | None = None):
        """Raises KforgeError or OSError where the folder cannot be used."""
        self._caller, self._run, self._parallel, self._memory, self._abroad = caller, run, parallel, memory, abroad
        self._root = root_of(run)
        self._log = IdeaLog.open(run)
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="idea", initializer=_give_way)
        self._cancel = threading.Event()
        self._jobs: list[_Job] = []  # in the order of their ideas
        self._ready: list[Proposal] = []
        self._situations: dict[str, Situation] = {}  # the last of each task
        self._outcomes: dict[str, Outcome] = {}  # the last of each proposal
        self._resting: dict[str, Rest] = {}  # by task, as of the last time that it was asked for
        self._done: dict[str, Rest] = {}  # for good
        self._over = ""
        self._resume(known)

    @property
    def ideas(self) -> tuple[Idea, ...]:
        """All that were asked for, by number."""
        return tuple(self._log.ideas)

    @property
    def stopped(self) -> str:
        """Why no model is asked any more, "" while they are."""
        return self._over

    @property
    def resting(self) -> dict[str, str]:
        """Tasks that get no further idea, and why."""
        return {key: rest.reason for key, rest in sorted((self._resting | self._done).items())}

    @property
    def working(self) -> bool:
        return bool(self._jobs or self._ready)

    def ask(self, situation: Situation) -> bool:
        """Starts at most one idea. True while the task may yet get one: this one, one that is on its way, or, when
        ``parallel`` of them are, one that is asked for later.
        """
        self._collect()
        key = situation.task.problem.key
        self._situations[key] = situation
        if self._over or self._cancel.is_set():
            return False
        for outcome in situation.outcomes:
            self._outcomes[outcome.proposal.id] = outcome
            if len(outcome.tried) >= tree.GIVEN_UP:
                self._mend(outcome)
        if len(self._jobs) >= self._parallel:
            return key not in self._resting | self._done or self._busy(key)
        if (again := self._left_over(key)) is not None:
            self._start(again, situation)
            return True
        choice = self._done.get(key) or tree.choose(self._log.ideas, situation)
        if isinstance(choice, Rest):
            self._resting[key] = choice
            return self._busy(key)
        self._resting.pop(key, None)
        self._start(self._idea(situation, choice), situation)
        return True

    def take(self) -> list[Proposal]:
        self._collect()
        taken, self._ready = self._ready, []
        return taken

    def tell(self, outcome: Outcome) -> None:
        """What it came to is learned. A proposal of which nothing ran is repaired, a few times, unasked."""
        self._collect()
        self._outcomes[outcome.proposal.id] = outcome
        self._learn(outcome)
        self._mend(outcome)

    def trials(self, proposal: str) -> int:
        """How many points of a proposal deserve a trial in all, after what was told."""
        outcome = self._outcomes.get(proposal)
        situation = self._situations.get(outcome.proposal.task) if outcome else None
        if outcome is None or situation is None:
            return tree.FIRST_TRIALS
        rivals = [o for o in self._outcomes.values() if o.proposal.task == outcome.proposal.task]
        return tree.deserved_trials(rivals, situation)[proposal]

    def close(self) -> None:
        self._cancel.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._jobs = [job for job in self._jobs if not job.future.cancelled()]
        self._collect()

    def _busy(self, key: str) -> bool:
        return any(job.idea.task == key for job in self._jobs) or any(p.task == key for p in self._ready)

    def _idea(self, situation: Situation, branch: Branch) -> Idea:
        branch = replace(branch, turn=min(branch.turn, self._parallel - 1))  # so many can be on their way beside it
        ordinal = sum(1 for i in self._log.ideas if i.branch.parent == branch.parent and not i.mends)
        number = self._log.next
        best = best_readings(situation.tried, tree.empty_call(situation))
        before = tuple((bucket, found.seconds) for bucket, found in best.items())
        margins = tuple((bucket, found.margin) for bucket, found in best.items())
        idea = Idea(number, situation.task.problem.key, branch, ordinal, len(situation.outcomes), before, number,
                    margins=margins)
        self._log.ask(idea)
        return idea

    def _sheet(self, situation: Situation) -> Sheet:
        known = sheet(situation, self._log.ideas)
        if self._abroad is not None:
            known = replace(known, transfer=self._abroad.best(situation))
        if self._memory is None:
            return known
        return replace(known, lessons=self._memory.recall(known, situation.task.problem.key))

    def _idea_of(self, proposal: Proposal) -> Idea | None:
        return next((i for i in self._log.ideas if i.id == proposal.id), None)

    def _learn(self, outcome: Outcome) -> None:
        idea = self._idea_of(outcome.proposal)
        if self._memory is not None and idea is not None:
            self._memory.learn(idea, outcome, self._situations.get(outcome.proposal.task))

    def _mend(self, outcome: Outcome) -> None:
        """Begins a repair of what failed and was not repaired yet."""
        proposal = outcome.proposal
        situation = self._situations.get(proposal.task)
        if not _to_mend(outcome) or situation is None or self._over or self._cancel.is_set():
            return
        idea = self._idea_of(proposal)
        if idea is None or any(i.mends == proposal.id for i in self._log.ideas):
            return
        if sum(1 for i in self._log.ideas if i.root == idea.root) > MENDS:
            return
        branch = Branch(proposal.template.hash)
        mend = Idea(self._log.next, idea.task, branch, 0, idea.told, idea.before, idea.root, proposal.id, idea.margins)
        self._log.ask(mend)
        self._start(mend, situation)

    def _left_over(self, key: str) -> Idea | None:
        """An idea of this task that an earlier process did not finish, and that can be taken up."""
        running = {job.idea.number for job in self._jobs}
        return next((i for i in self._log.unfinished if i.task == key and i.number not in running
                     and (not i.mends or self._failure(i.mends) is not None)), None)

    def _failure(self, proposal: str) -> Failure | None:
        outcome = self._outcomes.get(proposal)
        return outcome.failure if outcome else None

    def _start(self, idea: Idea, situation: Situation) -> None:
        mend = None
        if idea.mends and (failure := self._failure(idea.mends)) is not None:
            mend = Mend(self._outcomes[idea.mends].proposal, failure)
        templates = list(situation.templates)
        shown = next((t for t in templates if t.hash == idea.branch.parent), templates[0] if templates else None)
        known = {t.hash: t for t in [*templates, *(o.proposal.template for o in situation.outcomes)]}
        job = Assignment(idea, situation.task, situation.target, situation.threads, None if mend else shown,
                         list(known.values()), None if mend else self._sheet(situation), mend)
        self._log.begin(idea, assignments.to_json(job, self._run))
        future = self._pool.submit(think, job, self._caller, self._root, self._cancel)
        self._jobs.append(_Job(idea, future))
        self._jobs.sort(key=lambda j: j.idea.number)

    def _collect(self) -> None:
        """What is done, in the order in which it was asked for. Raises what a worker raised."""
        while self._jobs and self._jobs[0].future.done():
            job = self._jobs.pop(0)
            result = job.future.result()
            if isinstance(result, Proposal):
                result = self._unless_same(result)
            if isinstance(result, Proposal):
                self._log.offer(job.idea, result)
                self._ready.append(result)
                continue
            if result.how is End.CANCELLED:
                continue  # a later process takes it up
            self._log.end(job.idea, result)
            if result.final:
                self._over = self._over or result.reason
            if result.how is End.STOPPED:
                self._done[job.idea.task] = Rest(f"the analyst: {result.reason}")

    def _unless_same(self, proposal: Proposal) -> Proposal | Ending:
        """Two ideas that were worked out side by side may have come to the same."""
        mine = meaning_of(proposal.template)
        there = drafted(proposal.template.operator, self._run)
        for idea in self._log.ideas:
            offered = self._log.offered.get(idea.number)
            other = there.get(offered.path) if offered and idea.task == proposal.task else None
            if other is not None and meaning_of(other) == mine:
                return Ending(End.DUPLICATE, f"it means the same as {other.path}, which was worked out beside it")
        return proposal

    def _resume(self, known: Collection[str]) -> None:
        """What an earlier process found out: proposals that nobody took, ends, and the tasks that rest."""
        for idea in self._log.ideas:
            if (ending := self._log.ended.get(idea.number)) is not None and ending.how is End.STOPPED:
                self._done[idea.task] = Rest(f"the analyst: {ending.reason}")
            offered = self._log.offered.get(idea.number)
            if offered is None or idea.id in known:
                continue
            template = drafted(offered.path.split("/")[1], self._run).get(offered.path)
            if template is None or template.hash != offered.template_hash:
                self._log.end(idea, Ending(End.LOST, f"{offered.path} is gone or damaged"))
                continue
            self._ready.append(Proposal(idea.id, idea.task, template, offered.parent, offered.bottleneck, offered.move,
                                        offered.predicted, offered.author))
