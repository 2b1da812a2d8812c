"""Brings proposed templates into their contests, and tells their proposer what became of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from optuna.storages import JournalStorage

from kforge.backends import templates
from kforge.backends.building import build
from kforge.backends.cpp.disassembly import Loop, disassemble
from kforge.backends.templates import Template, TemplateError
from kforge.core.target import Target
from kforge.core.trial import Artifact, Failure, FailureClass, Trial
from kforge.core.words import brief
from kforge.tuner.contest import Contest, Lane
from kforge.tuner.importances import importances
from kforge.tuner.journal import Event, RunFolder, verdict_from_json
from kforge.tuner.measure import Measurer
from kforge.tuner.options import TuneOptions
from kforge.tuner.points import Point, Space
from kforge.tuner.progress import Watcher
from kforge.tuner.proposals import Inspected, LoopSeen, Outcome, Proposal, Proposer, Situation, Tried
from kforge.tuner.search import TaskSearch

_MOST_TOLD = 120  # characters of a move in a line of progress
TEMPLATES = "templates"  # of a run's folder: what was proposed in it
_FAILURES_SHOWN = 8
_LOOPS_SHOWN = 6  # of one point


class Proposing:
    """Between one run and its proposer; without one it does nothing."""

    def __init__(self, proposer: Proposer | None, options: TuneOptions, folder: RunFolder, storage: JournalStorage,
                 measurer: Measurer, target: Target, watcher: Watcher):
        self._proposer, self._options, self._folder, self._storage = proposer, options, folder, storage
        self._measurer, self._target, self._watcher = measurer, target, watcher
        self._failed: dict[str, Failure] = {}  # proposal id -> why nothing of it can be tried
        self._heard: dict[str, int] = {}  # proposal id -> points of which its author knows
        self._rendered: dict[tuple[str, Point], _Rendered] = {}  # by task: a foreign template takes a process each time

    @property
    def waiting(self) -> bool:
        """Whether something may still come."""
        return self._proposer is not None and self._proposer.working

    def restore(self, contests: Sequence[Contest]) -> None:
        """Lanes of what was proposed before a kill."""
        for data in self._folder.of(Event.PROPOSAL):
            proposal = self._recorded(data)
            if proposal is not None:
                self._enter(proposal, contests)

    def admit(self, contests: Sequence[Contest]) -> None:
        """Proposals that are ready get their lanes, each written down first."""
        for proposal in self._proposer.take() if self._proposer is not None else ():
            self._folder.write(Event.PROPOSAL, _to_json(proposal))
            self._watcher.note(f"{proposal.author} proposes {proposal.template.path} for {proposal.task}: "
                               f"{brief(proposal.move, _MOST_TOLD)} (predicted {100 * proposal.predicted:+.0f} %)")
            self._enter(proposal, contests)

    def ask(self, contests: Sequence[Contest]) -> None:
        """Lets the proposer look at the first of these tasks for which it will come up with something."""
        if self._proposer is None:
            return
        for contest in contests:
            if self._proposer.ask(self.situation(contest)):
                return

    def heard(self, contest: Contest, lane: Lane) -> None:
        """After a round of a lane whose trials are spent for now: its author hears, and says what it deserves then."""
        if lane.proposal is None or self._proposer is None:
            return
        measured = len(lane.search.measured)
        spent = not lane.left or lane.search.exhausted or lane.hopeless
        if spent and measured > self._heard.get(lane.proposal.id, 0):
            self._heard[lane.proposal.id] = measured
            self._tell(contest, lane.proposal)
        for other in contest.lanes:  # what one came to changes what its rivals deserve
            if other.proposal is not None:
                other.deserved = self._proposer.trials(other.proposal.id)

    def judged(self, contest: Contest) -> None:
        """After the finals of a task: authors hear the verdicts."""
        for lane in contest.lanes[1:]:
            if lane.proposal is not None and self._verdicts(contest, lane):
                self._tell(contest, lane.proposal)

    def situation(self, contest: Contest) -> Situation:
        tried = [self._tried(contest, point) for point in contest.measured]
        good = [t for t in tried if all(trial.ok for trial in t.trials.values()) and t.trials]
        bad = [t for t in tried if not t.trials or not all(trial.ok for trial in t.trials.values())]
        good.sort(key=lambda t: _cost(t, contest.weights))
        proposals = [lane.proposal for lane in contest.lanes if lane.proposal is not None]
        best = good[0].point.template if good else ""
        return Situation(
            contest.task, self._target, self._options.threads, _by_time(contest, good),
            good, bad[-_FAILURES_SHOWN:],
            [self._outcome(contest, p) for p in proposals], contest.limits, contest.weights, contest.promise,
            importances(contest.measured, contest.weights, best),
            self._measurer.empty_call(contest.task), partial(self._inspect, contest),
        )

    def _enter(self, proposal: Proposal, contests: Sequence[Contest]) -> None:
        contest = next((c for c in contests if c.task.problem.key == proposal.task), None)
        if contest is None:
            return
        try:
            space = Space(contest.task, [proposal.template], self._target)
        except TemplateError as error:
            return self._refuse(contest, proposal, error.failure)
        if any(proposal.template.path == point.template for lane in contest.lanes for point in lane.space.defaults):
            return self._refuse(contest, proposal, Failure(FailureClass.TEMPLATE, "its name is taken"))
        if not space.points:
            reason = f"it does not fit the task: {'; '.join(sorted({r for _, r in space.refused}))}"
            return self._refuse(contest, proposal, Failure(FailureClass.TEMPLATE, reason))
        rows = contest.main.space.default_rows
        seeds = sorted(space.defaults, key=lambda p: p.rows != rows)
        buckets = [b.workload.key for b in contest.task.buckets]
        search = TaskSearch(space, self._storage, buckets, seeds, seed=self._options.seed, name=proposal.template.path,
                            strategy=self._options.strategy)
        deserved = self._proposer.trials(proposal.id) if self._proposer is not None else math.inf
        contest.lanes.append(Lane(space, search, proposal, deserved=deserved))
        return None

    def _refuse(self, contest: Contest, proposal: Proposal, failure: Failure) -> None:
        self._failed[proposal.id] = failure
        self._watcher.note(f"{proposal.template.path} is not tried: {failure.reason}")
        if self._proposer is not None:
            self._proposer.tell(self._outcome(contest, proposal))

    def _tell(self, contest: Contest, proposal: Proposal) -> None:
        if self._proposer is not None:
            self._proposer.tell(self._outcome(contest, proposal))

    def _outcome(self, contest: Contest, proposal: Proposal) -> Outcome:
        lane = next((lane for lane in contest.lanes if lane.proposal is proposal), None)
        if lane is None:
            return Outcome(proposal, (), self._failed.get(proposal.id), ())
        tried = [self._tried(contest, point) for point in lane.search.measured]
        right = any(trial.ok for t in tried for trial in t.trials.values())
        failures = [trial.failure for t in tried for trial in t.trials.values() if trial.failure is not None]
        failure = None if right or not failures else failures[0]
        tried.sort(key=lambda t: _cost(t, contest.weights))
        return Outcome(proposal, tried, failure, self._verdicts(contest, lane))

    def _verdicts(self, contest: Contest, lane: Lane) -> list:
        hashes = {self._render(contest, point).candidate for point in lane.search.measured}
        found = [verdict_from_json(d["verdict"]) for d in self._folder.of(Event.VERDICT)
                 if d["task"] == contest.task.problem.key]
        return [verdict for verdict in found if verdict.candidate_hash in hashes]

    def _tried(self, contest: Contest, point: Point) -> Tried:
        rendered = self._render(contest, point)
        buckets = [(b.workload.key, contest.task.workload(b, point.rows).key) for b in contest.task.buckets]
        if rendered.failure is not None:
            failed = Trial("", buckets[0][1], point.params, point.template, failure=rendered.failure)
            return Tried(point, rendered.template, {buckets[0][0]: failed})
        known = {bucket: self._measurer.known(rendered.candidate, workload) for bucket, workload in buckets}
        return Tried(point, rendered.template, {bucket: trial for bucket, trial in known.items() if trial is not None})

    def _render(self, contest: Contest, point: Point) -> _Rendered:
        key = contest.task.problem.key, point
        if key not in self._rendered:
            template = next(t.hash for lane in contest.lanes for t in lane.space.templates if t.path == point.template)
            try:
                self._rendered[key] = _Rendered(template, contest.render(point).hash)
            except TemplateError as error:
                self._rendered[key] = _Rendered(template, failure=error.failure)
        return self._rendered[key]

    def _inspect(self, contest: Contest, tried: Tried) -> Inspected | None:
        """From the cache of builds: it was built to be measured."""
        built = build(contest.render(tried.point), self._target)
        return Inspected(built.report, _loops(built.data)) if isinstance(built, Artifact) else None

    def _recorded(self, data: dict) -> Proposal | None:
        """None, with a note, when its file is no longer what was proposed."""
        template = self._template(data["path"])
        if template is None or template.hash != data["hash"]:
            self._watcher.note(f"{data['path']} of {self._folder.path} is gone or edited; it does not compete again")
            return None
        return Proposal(data["id"], data["task"], template, data["parent"], data["bottleneck"], data["move"],
                        data["predicted"], data["author"])

    def _template(self, path: str) -> Template | None:
        try:
            found = templates.load(path.split("/")[1], self._folder.path / TEMPLATES)
        except TemplateError:
            return None
        return next((t for t in found if t.path == path), None)


@dataclass(frozen=True)
class _Rendered:
    """Hashes of a point's template and of its candidate, or why there is none."""

    template: str
    candidate: str = ""
    failure: Failure | None = None


@lru_cache(maxsize=64)
def _loops(data: bytes) -> tuple[LoopSeen, ...]:
    """Innermost loops that compute on vectors, the one first that computes most; else the longest alone."""
    listing = disassemble(data)

    def weight(loop: Loop) -> tuple[int, int, int]:
        return loop.work, loop.depth, loop.last - loop.first

    inner = sorted((loop for loop in listing.loops if loop.innermost), key=weight, reverse=True)
    shown = [loop for loop in inner if loop.work][:_LOOPS_SHOWN] or inner[:1]
    return tuple(LoopSeen(tuple(line.text for line in listing.lines[loop.first : loop.last + 1]), loop.mix)
                 for loop in shown)


def _cost(tried: Tried, weights: Mapping[str, float]) -> float:
    total = 0.0
    for bucket, weight in weights.items():
        trial = tried.trials.get(bucket)
        if trial is None or trial.timing is None or trial.failure is not None:
            return math.inf
        total += weight * trial.timing.seconds
    return total


def _by_time(contest: Contest, good: Sequence[Tried]) -> list[Template]:
    """The templates that compete, by their best point."""
    order = list(dict.fromkeys(t.point.template for t in good))
    found = {t.path: t for lane in contest.lanes for t in lane.space.templates}
    return [found[path] for path in order] + [t for path, t in found.items() if path not in order]


def _to_json(proposal: Proposal) -> dict:
    return {"id": proposal.id, "task": proposal.task, "path": proposal.template.path, "hash": proposal.template.hash,
            "parent": proposal.parent, "bottleneck": proposal.bottleneck, "move": proposal.move,
            "predicted": proposal.predicted, "author": proposal.author}
