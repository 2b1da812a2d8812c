"""One tuning run from start to end; every step can be repeated, so that a killed run goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optuna.storages import JournalStorage

from kforge.backends.defaults import exact_templates
from kforge.backends.header import TemplateError
from kforge.backends.templates import Template
from kforge.core.kernel import KernelRecord, Tier
from kforge.core.target import Target
from kforge.core.workload import attrs
from kforge.harness import Harness
from kforge.harness.calibrate import measure_noise
from kforge.harness.turn import Turn
from kforge.operators import get
from kforge.registry.ask import ask
from kforge.registry.database import Registry
from kforge.targets.noise import UNCALIBRATED, noise_of, save_noise
from kforge.targets.roofline import time_limit
from kforge.tuner.contest import Contest, Lane, any_lane, used_trials
from kforge.tuner.finals import Finals
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.measure import Measurer
from kforge.tuner.options import JUDGE_UNTIL, SEARCH_UNTIL, TuneOptions
from kforge.tuner.plan import Task, shares
from kforge.tuner.points import Point, Space
from kforge.tuner.progress import Watcher
from kforge.tuner.proposals import Proposer
from kforge.tuner.proposing import Proposing
from kforge.tuner.search import TaskSearch, open_storage
from kforge.tuner.waiting import retire_timed, waiting_points

IMPORTED = 10  # points measured elsewhere, for each layout, that a search begins with
BATCH = 4  # points that are built side by side
_PAUSE = 0.2  # seconds between two looks at a proposer when there is nothing to measure
_OWN_SHARE, _IDEA_SHARE = 0.4, 0.2  # of the trials, for shipped templates and for each idea while more is thought of
_ASK_UNTIL = 0.8  # of the search's time or trials: the rest is for what was proposed by then
_NOISE_SHARE = 0.07  # of the budget, for the noise of a machine that was never calibrated
_LEAST_NOISE_SECONDS = 20.0  # a shorter tune judges as on a machine of which nothing is known


@dataclass(frozen=True)
class SearchOutcome:
    """What a run's search and judging came to."""

    accepted: tuple[KernelRecord, ...]
    settled: tuple[str, ...]  # problems that this run settled
    kept: tuple[str, ...]  # problems that the registry had settled before
    trials: int


class Coordinator:
    """Plans, searches and judges for one run. The registry is written as soon as something is decided."""

    def __init__(self, options: TuneOptions, folder: RunFolder, registry: Registry, target: Target, watcher: Watcher,
                 proposer: Proposer | None = None, generated: Sequence[Template] = (), turn: Turn | None = None):
        """``proposer``: where more templates come from. ``generated``: those that compete instead of the shipped ones,
        of which there are none for an imported operator; the first serves untuned. ``turn``: taken by whoever measures,
        where several runs share the machine."""
        self.options, self.folder, self.registry, self.target, self.watcher = options, folder, registry, target, watcher
        self.proposer, self.generated, self.turn = proposer, generated, turn
        self.snapshot = registry.snapshot()

    def run(self, tasks: Sequence[Task]) -> SearchOutcome:
        """The search for these tasks, as far as the options ask for them, and the judge's word on its winners."""
        spaces = [self._space(task) for task in tasks if self.options.only in task.problem.key]
        fresh: list[Space] = []
        kept: list[Space] = []
        for space in spaces:
            (kept if self._is_settled(space) else fresh).append(space)
        if kept:
            self.watcher.note(
                f"{len(kept)} of {len(spaces)} problems are not tuned again: earlier runs settled them with these "
                "templates (--retune does)"
            )
        trust = self.options.trust_candidates
        with Harness(self.target, self.options.threads, trust_candidates=trust, turn=self.turn) as harness:
            if harness.provenance.trusted:
                self.watcher.note(f"candidates are trusted: no {', '.join(harness.provenance.missing)} in the sandbox")
            if fresh:
                self._know_the_noise(harness)
            measurer = Measurer(
                self.folder, self.registry, harness, self.target, self.watcher, self.options.budget_seconds
            )
            storage = open_storage(self.folder.path)
            contests = self._baseline(fresh, measurer, storage)
            proposing = Proposing(self.proposer, self.options, self.folder, storage, measurer, self.target,
                                  self.watcher)
            self._search(contests, measurer, proposing)
            accepted = self._judge(contests, harness, proposing)
            for contest in contests:
                measured = contest.main.search.measured
                retire_timed(self.registry, contest.main.space, self.target, measured, self.folder.id)
        settled = tuple(d["task"] for d in self.folder.of(Event.SETTLED))
        return SearchOutcome(tuple(accepted), settled, tuple(s.task.problem.key for s in kept), measurer.trials)

    def _know_the_noise(self, harness: Harness) -> None:
        """Once per machine: what the judge has to hold gains against. Without it next to nothing is accepted."""
        if self.target.backends[0] != "cpp":
            return  # what the noise is measured with are native kernels
        seconds = _NOISE_SHARE * self.options.budget_seconds
        if seconds < _LEAST_NOISE_SECONDS or noise_of(self.target, harness.threads) != UNCALIBRATED:
            return
        self.watcher.stage("measuring this machine's noise, once (kforge judge calibrate measures it longer)")
        noise = measure_noise(harness, time.monotonic() + seconds)
        save_noise(noise, self.target)
        self.watcher.note(noise.summary())

    def _space(self, task: Task) -> Space:
        if self.generated:
            return Space(task, self.generated, self.target, self.generated[0].path)
        templates = exact_templates(task.problem.operator, self.target.backends[0])
        return Space(task, templates, self.target)

    def _is_settled(self, space: Space) -> bool:
        """Whether an earlier run settled all these buckets, with the same templates, and nothing is stale."""
        before = self.snapshot.settled(space.task.problem, self.target.identity)
        if self.options.retune or before is None or before.templates != space.templates_hash:
            return False
        if any(d["task"] == space.task.problem.key for d in self.folder.of(Event.SETTLED)):
            return True
        wanted = {b.workload.point for b in space.task.buckets}
        if not wanted <= set(before.buckets):
            return False
        answers = [
            ask(self.snapshot, w.problem.operator, {**dict(w.problem.static), **w.axes}, self.target)
            for w in (space.task.workload(b, before.rows) for b in space.task.buckets)
        ]
        return not any(a.stale for a in answers if a.tier is Tier.EXACT)

    def _baseline(self, spaces: Sequence[Space], measurer: Measurer, storage: JournalStorage) -> list[Contest]:
        """Time the defaults first: they say what each problem's share of a step is, and so where effort pays."""
        if spaces:
            self.watcher.stage("timing the default kernels")
        contests: list[Contest] = []
        seconds: dict[str, float] = {}
        defaults = {s.task.problem: s.default(s.default_rows) for s in spaces if s.points}
        measurer.prebuild([s.render(defaults[s.task.problem], "default") for s in spaces if s.points])
        for space in spaces:
            if not space.points:
                reasons = "; ".join(dict.fromkeys(reason for _, reason in space.refused))
                none = f"none is shipped in {self.target.backends[0]}, another language's serves"
                self.watcher.note(f"no template fits {space.task.problem.key}: {reasons or none}")
                continue
            search = TaskSearch(space, storage, [b.workload.key for b in space.task.buckets], self._seeds(space),
                                self.options.seed, strategy=self.options.strategy)
            default = defaults[space.task.problem]
            candidate = space.render(default, "default")
            timed = measurer.measure(space, default, candidate)
            search.tell(default, timed)
            seconds |= timed
            limits = {}
            for bucket in space.task.buckets:
                workload = space.task.workload(bucket, default.rows)
                cost = get(workload.problem.operator).cost(workload)
                limits[bucket.workload.key] = time_limit(cost, self.target, self.options.threads).seconds
            contests.append(Contest([Lane(space, search)], limits=limits))
        share = shares([s.task for s in spaces], seconds)
        for contest in contests:
            for bucket in contest.task.buckets:
                key = bucket.workload.key
                contest.weights[key] = share[key] / seconds[key] if seconds.get(key) else 0.0
            self._write_task(contest, share)
        return contests

    def _write_task(self, contest: Contest, share: dict[str, float]) -> None:
        task = contest.task
        if any(d["task"] == task.problem.key for d in self.folder.of(Event.TASK)):
            return
        self.folder.write(
            Event.TASK,
            {
                "task": task.problem.key,
                "points": contest.points,
                "promise": contest.promise,
                "refused": [{"template": t, "reason": r} for t, r in contest.main.space.refused],
                "buckets": [
                    {
                        "bucket": b.workload.key,
                        "share": share[b.workload.key],
                        "limit": contest.limits[b.workload.key],
                        "calls": dict(b.calls),
                    }
                    for b in task.buckets
                ],
            },
        )

    def _seeds(self, space: Space) -> list[Point]:
        """The default in every layout; what was built and checked for this target before it was here; each other
        template once, the one predicted fastest first; what the registry remembers as fastest; what was measured
        elsewhere."""
        seeds = [space.default(rows) for rows in space.layouts]
        seeds += waiting_points(self.snapshot, space, self.target)
        others = [p for p in space.defaults if p.rows == space.default_rows]
        seeds += sorted(others, key=lambda p: space.predicted(p, self.options.threads))
        for rows in space.task.rows_choices():
            for row in self.registry.tried(space.task.at(rows), self.target.identity, limit=5):
                seeds.append(Point(row.template, rows, row.params))
        for rows in space.task.rows_choices():
            elsewhere = self.registry.seeds(space.task.at(rows), self.target.identity)
            seeds += space.seeded(elsewhere, rows)[:IMPORTED]
        return seeds

    def _search(self, contests: Sequence[Contest], measurer: Measurer, proposing: Proposing) -> None:
        """Rounds go to the task with the most to give per round already spent, until time is up or all is tried."""
        proposing.restore(contests)
        for contest in contests:
            for lane in contest.lanes:
                self._replay(contest, lane)
        if any(contest.next_lane() for contest in contests) or proposing.waiting:
            self.watcher.stage("searching")
        while not self._searched(measurer):
            proposing.admit(contests)
            allowed = self._allowance(contests, measurer, proposing)
            open_ones = [c for c in contests if c.next_lane(allowed)]
            if contests and self._spent(measurer) < _ASK_UNTIL:
                proposing.ask(sorted(contests, key=lambda c: -c.promise / (1 + c.rounds)))
            if open_ones:
                chosen = max(open_ones, key=lambda c: c.promise / (1 + c.rounds))
                self._round(chosen, measurer, proposing, allowed)
            elif proposing.waiting:
                time.sleep(_PAUSE)
            else:
                break

    def _spent(self, measurer: Measurer) -> float:
        """Share of the search's time or of its trials, whichever is nearer to its end."""
        trials = measurer.trials / self.options.max_trials if self.options.max_trials else 0.0
        return max(trials, self.folder.used_seconds / (SEARCH_UNTIL * self.options.budget_seconds))

    def _searched(self, measurer: Measurer) -> bool:
        return self._spent(measurer) >= 1

    def _allowance(
        self, contests: Sequence[Contest], measurer: Measurer, proposing: Proposing
    ) -> Callable[[Lane], bool]:
        """Which lanes may go on. Where trials are few and time is not, some are kept for what is being thought of: a
        model takes a minute for an idea, in which shipped templates, or the idea before, would use up sixty trials.
        """
        most, budget = self.options.max_trials, self.options.budget_seconds
        if not proposing.waiting or self._spent(measurer) <= self.folder.used_seconds / (SEARCH_UNTIL * budget):
            return any_lane
        own = sum(used_trials(contest.main) for contest in contests)

        def allowed(lane: Lane) -> bool:
            return own < _OWN_SHARE * most if lane.proposal is None else used_trials(lane) < _IDEA_SHARE * most

        return allowed

    def _round(
        self,
        contest: Contest,
        measurer: Measurer,
        proposing: Proposing,
        allowed: Callable[[Lane], bool],
    ) -> None:
        """A few points of the lane that has the most to hope for, built side by side and timed one by one."""
        lane = contest.next_lane(allowed)
        assert lane is not None
        lane.rounds += 1
        ready = []
        for point in lane.search.propose(int(min(BATCH, lane.left))):
            try:
                ready.append((point, contest.render(point)))
            except TemplateError as error:  # of a proposed template: no shipped one leaves its sandbox
                self.watcher.note(f"{point.name}: {error.failure.reason}")
                lane.search.tell(point, {})
        measurer.prebuild([candidate for _, candidate in ready])
        for point, candidate in ready:
            lane.search.tell(point, measurer.measure(lane.space, point, candidate))
            if self._searched(measurer):
                break
        proposing.heard(contest, lane)

    def _replay(self, contest: Contest, lane: Lane) -> None:
        """Tell a search what the journal holds of its points: what a killed process had measured."""
        known: dict[Point, dict[str, float]] = {}
        for data in self.folder.of(Event.TRIAL):
            if data["task"] == contest.task.problem.key:
                trial = data["trial"]
                point = Point(trial["template"], data["rows"], attrs(trial["params"]))
                timed = known.setdefault(point, {})
                if trial["timing"] and not trial["failure"]:
                    timed[data["bucket"]] = trial["timing"]["seconds"]
        complete = {b.workload.key for b in contest.task.buckets}
        for point, timed in known.items():
            if point in lane.space and set(timed) == complete:
                lane.search.tell(point, timed)

    def _judge(self, contests: Sequence[Contest], harness: Harness, proposing: Proposing) -> list[KernelRecord]:
        """Layouts and finals, the heaviest problem first; what the time does not reach stays with its incumbent."""
        finals = Finals(self.folder, self.registry, harness, self.target, self.snapshot)
        done = {d["task"] for d in self.folder.of(Event.SETTLED)}
        accepted: list[KernelRecord] = []
        waiting = [c for c in contests if c.task.problem.key not in done]
        # Of what was never searched nothing is known that could be settled: the default stood alone.
        searched = [c for c in waiting if c.points == 1 or len(c.measured) > 1]
        if missed := len(waiting) - len(searched):
            self.watcher.note(f"out of time before searching {missed} of {len(contests)} problems: their incumbents "
                              "stay, and the next tune goes on with them (give it a larger --budget)")
        waiting = searched
        if waiting:
            self.watcher.stage("judging finalists in interleaved pairs")
        for contest in sorted(waiting, key=lambda c: -c.promise):
            alone = contest.points == 1  # nothing to judge, and so no time to spend
            if not alone and self.folder.used_seconds > JUDGE_UNTIL * self.options.budget_seconds:
                self.watcher.note(f"out of time before judging {contest.task.problem.key}: its incumbent stays")
                continue
            accepted += finals.settle(contest)
            proposing.judged(contest)
        return accepted
