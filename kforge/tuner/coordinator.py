"""One tuning run from start to end; every step can be repeated, so that a killed run goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kforge.backends.defaults import exact_templates
from kforge.core.kernel import KernelRecord, Tier
from kforge.core.target import Target
from kforge.core.workload import attrs
from kforge.harness import Harness
from kforge.harness.calibrate import measure_noise
from kforge.models.workloads import WorkloadRow
from kforge.operators import get
from kforge.registry.ask import ask
from kforge.registry.database import Registry
from kforge.targets.noise import UNCALIBRATED, noise_of, save_noise
from kforge.targets.roofline import time_limit
from kforge.tuner.finals import Finals
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.measure import Measurer
from kforge.tuner.options import JUDGE_UNTIL, SEARCH_UNTIL, TuneOptions
from kforge.tuner.plan import Task, plan, shares
from kforge.tuner.points import Point, Space
from kforge.tuner.progress import Watcher
from kforge.tuner.search import TaskSearch, open_storage

BATCH = 4  # points that are built side by side
_NOISE_SHARE = 0.07  # of the budget, for the noise of a machine that was never calibrated
_LEAST_NOISE_SECONDS = 20.0  # a shorter tune judges as on a machine of which nothing is known


@dataclass
class Effort:
    """A task on its way: its space, its search, and what a step would gain from it."""

    space: Space
    search: TaskSearch
    weights: dict[str, float] = field(default_factory=dict)  # bucket -> share of a step per second of its call
    limits: dict[str, float] = field(default_factory=dict)  # bucket -> seconds that the target's limits allow
    rounds: int = 0

    @property
    def promise(self) -> float:
        """Share of a step that this task could still give back: Amdahl's share times head-room to the roofline."""
        total = 0.0
        for bucket, weight in self.weights.items():
            best = min((s[bucket] for s in self.search.measured.values() if bucket in s), default=0.0)
            total += weight * max(best - self.limits.get(bucket, 0.0), 0.0)
        return total


@dataclass(frozen=True)
class SearchOutcome:
    """What a run's search and judging came to."""

    accepted: tuple[KernelRecord, ...]
    settled: tuple[str, ...]  # problems that this run settled
    kept: tuple[str, ...]  # problems that the registry had settled before
    trials: int


class Coordinator:
    """Plans, searches and judges for one run. The registry is written as soon as something is decided."""

    def __init__(self, options: TuneOptions, folder: RunFolder, registry: Registry, target: Target, watcher: Watcher):
        self.options, self.folder, self.registry, self.target, self.watcher = options, folder, registry, target, watcher
        self.snapshot = registry.snapshot()

    def run(self, rows: Sequence[WorkloadRow]) -> SearchOutcome:
        tasks = plan(rows, lambda problem, axes: get(problem.operator).bucket(problem, axes))
        tasks = [t for t in tasks if self.options.only in t.problem.key]
        spaces = [self._space(task) for task in tasks]
        fresh: list[Space] = []
        kept: list[Space] = []
        for space in spaces:
            (kept if self._is_settled(space) else fresh).append(space)
        if kept:
            self.watcher.note(
                f"{len(kept)} of {len(spaces)} problems come from the registry, tuned before with these "
                "templates (--retune tries again)"
            )
        trust = self.options.trust_candidates
        with Harness(self.target, self.options.threads, trust_candidates=trust) as harness:
            if harness.provenance.trusted:
                self.watcher.note(f"candidates are trusted: no {', '.join(harness.provenance.missing)} in the sandbox")
            if fresh:
                self._know_the_noise(harness)
            measurer = Measurer(
                self.folder, self.registry, harness, self.target, self.watcher, self.options.budget_seconds
            )
            efforts = self._baseline(fresh, measurer)
            self._search(efforts, measurer)
            accepted = self._judge(efforts, harness)
        settled = tuple(d["task"] for d in self.folder.of(Event.SETTLED))
        return SearchOutcome(tuple(accepted), settled, tuple(s.task.problem.key for s in kept), measurer.trials)

    def _know_the_noise(self, harness: Harness) -> None:
        """Once per machine: what the judge has to hold gains against. Without it next to nothing is accepted."""
        seconds = _NOISE_SHARE * self.options.budget_seconds
        if seconds < _LEAST_NOISE_SECONDS or noise_of(self.target, harness.threads) != UNCALIBRATED:
            return
        self.watcher.stage("measuring this machine's noise, once (kforge judge calibrate measures it longer)")
        noise = measure_noise(harness, time.monotonic() + seconds)
        save_noise(noise, self.target)
        self.watcher.note(noise.summary())

    def _space(self, task: Task) -> Space:
        return Space(task, exact_templates(task.problem.operator), self.target)

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

    def _baseline(self, spaces: Sequence[Space], measurer: Measurer) -> list[Effort]:
        """Time the defaults first: they say what each problem's share of a step is, and so where effort pays."""
        if spaces:
            self.watcher.stage("timing the default kernels")
        storage = open_storage(self.folder.path)
        efforts: list[Effort] = []
        seconds: dict[str, float] = {}
        defaults = {s.task.problem: s.default(s.default_rows) for s in spaces if s.points}
        measurer.prebuild([s.render(defaults[s.task.problem], "default") for s in spaces if s.points])
        for space in spaces:
            if not space.points:
                self.watcher.note(
                    f"no template fits {space.task.problem.key}: {'; '.join(r for _, r in space.refused)}"
                )
                continue
            search = TaskSearch(
                space, storage, [b.workload.key for b in space.task.buckets], self._seeds(space), seed=self.options.seed
            )
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
            efforts.append(Effort(space, search, limits=limits))
        share = shares([s.task for s in spaces], seconds)
        for effort in efforts:
            for bucket in effort.space.task.buckets:
                key = bucket.workload.key
                effort.weights[key] = share[key] / seconds[key] if seconds.get(key) else 0.0
            self._write_task(effort, share)
        return efforts

    def _write_task(self, effort: Effort, share: dict[str, float]) -> None:
        task = effort.space.task
        if any(d["task"] == task.problem.key for d in self.folder.of(Event.TASK)):
            return
        self.folder.write(
            Event.TASK,
            {
                "task": task.problem.key,
                "points": len(effort.space.points),
                "promise": effort.promise,
                "refused": [{"template": t, "reason": r} for t, r in effort.space.refused],
                "buckets": [
                    {
                        "bucket": b.workload.key,
                        "share": share[b.workload.key],
                        "limit": effort.limits[b.workload.key],
                        "calls": dict(b.calls),
                    }
                    for b in task.buckets
                ],
            },
        )

    def _seeds(self, space: Space) -> list[Point]:
        """The default in every layout; each other template once, the one predicted fastest first; what the registry
        remembers as fastest."""
        seeds = [space.default(rows) for rows in space.layouts]
        others = [p for p in space.defaults if p.rows == space.default_rows]
        seeds += sorted(others, key=lambda p: space.predicted(p, self.options.threads))
        for rows in space.task.rows_choices():
            for row in self.registry.tried(space.task.at(rows), self.target.identity, limit=5):
                seeds.append(Point(row.template, rows, row.params))
        return seeds

    def _search(self, efforts: Sequence[Effort], measurer: Measurer) -> None:
        """Rounds go to the task with the most to give per round already spent, until time is up or all is tried."""
        until = SEARCH_UNTIL * self.options.budget_seconds
        for effort in efforts:
            self._replay(effort)
        live = [e for e in efforts if not e.search.exhausted]
        if live:
            self.watcher.stage("searching")
        while live and self.folder.used_seconds < until:
            effort = max(live, key=lambda e: e.promise / (1 + e.rounds))
            effort.rounds += 1
            points = effort.search.propose(BATCH)
            candidates = [effort.space.render(p) for p in points]
            measurer.prebuild(candidates)
            for point, candidate in zip(points, candidates, strict=True):
                effort.search.tell(point, measurer.measure(effort.space, point, candidate))
                if self.folder.used_seconds > until:
                    break
            if effort.search.exhausted or not points:
                live.remove(effort)

    def _replay(self, effort: Effort) -> None:
        """Tell the search what the journal holds of its points: what a killed process had measured."""
        known: dict[Point, dict[str, float]] = {}
        for data in self.folder.of(Event.TRIAL):
            if data["task"] == effort.space.task.problem.key:
                trial = data["trial"]
                point = Point(trial["template"], data["rows"], attrs(trial["params"]))
                timed = known.setdefault(point, {})
                if trial["timing"] and not trial["failure"]:
                    timed[data["bucket"]] = trial["timing"]["seconds"]
        complete = {b.workload.key for b in effort.space.task.buckets}
        for point, timed in known.items():
            if point in effort.space and set(timed) == complete:
                effort.search.tell(point, timed)

    def _judge(self, efforts: Sequence[Effort], harness: Harness) -> list[KernelRecord]:
        """Layouts and finals, the heaviest problem first; what the time does not reach stays with its incumbent."""
        finals = Finals(self.folder, self.registry, harness, self.target, self.snapshot)
        done = {d["task"] for d in self.folder.of(Event.SETTLED)}
        accepted: list[KernelRecord] = []
        waiting = [e for e in efforts if e.space.task.problem.key not in done]
        if waiting:
            self.watcher.stage("judging finalists in interleaved pairs")
        for effort in sorted(waiting, key=lambda e: -e.promise):
            alone = len(effort.space.points) == 1  # nothing to judge, and so no time to spend
            if not alone and self.folder.used_seconds > JUDGE_UNTIL * self.options.budget_seconds:
                self.watcher.note(f"out of time before judging {effort.space.task.problem.key}: its incumbent stays")
                continue
            accepted += finals.settle(effort.space, effort.search, effort.weights)
        return accepted
