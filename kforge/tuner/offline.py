"""``kforge tune --target NAME --offline``: a run for a chip that is not here.

Candidates are built for it, looked at (the compiler's report, a cost model) and checked on what stands in for it.
Nothing is timed, so nothing competes and nothing is settled: of what is right, the few predicted fastest are kept in
the state *checked*. They are stored and exported like others, never served, and first in line when the chip appears.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

from kforge.backends import templates
from kforge.backends.header import TemplateError
from kforge.backends.templates import Template
from kforge.backends.verbs import Backend, StaticReport, of
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Decision, Failure, NumericsClass, Trial, Verdict
from kforge.core.words import counted
from kforge.core.workload import Workload
from kforge.harness.offline import CheckedOffline, check_offline
from kforge.models.model import Model
from kforge.operators import get
from kforge.registry.database import Registry
from kforge.targets.roofline import time_limit
from kforge.tuner.journal import Event, RunFolder, trial_from_json, trial_to_json
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import Bucket, Task, plan, shares
from kforge.tuner.points import Point, Space
from kforge.tuner.progress import Progress, Watcher
from kforge.tuner.tune import started, step_rows
from kforge.tuner.winners import Seconds, record_of

KEPT = 4  # kernels of a bucket: what is first in line should be little, and a model's prediction is only so good
_MOST_BUILT = 24  # points of a problem
_BUILD_SHARE = 0.5  # of a problem's time
_CPU_THREADS = 2  # in a check: enough for barriers to matter
_WRONG = 8  # points that may fail before a problem is left


@dataclass(frozen=True)
class OfflineResult:
    """What a run came to. ``reached``: problems of which something was built; ``checked``: candidates at a bucket that
    were right; ``kept``: kernels stored of them."""

    run: str
    problems: int
    reached: int
    trials: int
    failed: int
    checked: int
    kept: int
    unfit: tuple[str, ...]  # problems that no template of the target's backends fits

    @property
    def text(self) -> str:
        """One line."""
        left = f", {counted(len(self.unfit), 'problem')} that no template fits" if self.unfit else ""
        return (f"{counted(self.kept, 'kernel')} built and checked, of {self.reached} of "
                f"{counted(self.problems, 'problem')} that the time reached, none timed: "
                f"no such device is here ({counted(self.trials, 'trial')}, {self.failed} failed{left}).")


@dataclass(frozen=True)
class _Built:
    point: Point
    candidate: Candidate
    artifact: Artifact
    reports: tuple[StaticReport, ...]  # one a bucket of the task, in order

    @property
    def predicted(self) -> float:
        """Seconds of one call at each bucket together; inf where no model says anything."""
        total = sum(report.seconds for report in self.reports)
        return total if total and math.isfinite(total) else math.inf


def require_offline(target: Target) -> list[Backend]:
    """The backends that can build for the target here. Raises KforgeError with what each lacks where none can."""
    if not target.backends:
        raise KforgeError(f"target {target.name} is only described: no backend of kforge builds for it")
    found, lacking = [], []
    for name in target.backends:
        try:
            backend = of(name)
        except ImportError as error:  # what it is written with is not installed
            lacking.append(f"{name}: {error}")
            continue
        if why := backend.cannot_build(target):
            lacking.append(f"{name}: {why}")
        else:
            found.append(backend)
    if not found:
        raise KforgeError(f"nothing can be built for {target.name} here: {'; '.join(lacking)}")
    return found


def tune_offline(model: Model, options: TuneOptions, folder: RunFolder, registry: Registry, target: Target,
                 watcher: Watcher) -> OfflineResult:
    """One whole run, or the rest of one that was killed. Raises KforgeError where nothing can be built for the target
    on this machine, or nothing stands in for it."""
    backends = require_offline(target)
    if not folder.lines:
        folder.write(Event.STARTED, {**started(options, target), "offline": True})
    registry.begin_run(folder.id, options.subject, target.identity, folder.path)
    tasks = [t for t in plan(step_rows(model, options)) if options.only in t.problem.key]
    with registry.tuning_lock():
        run = _Offline(options, folder, registry, target, watcher, backends)
        result = run.all(tasks)
    folder.write(Event.FINISHED, {"trials": result.trials, "accepted": 0, "kept": 0, "checked": result.kept})
    return result


class _Offline:
    """The steps of one run. What the journal holds is not checked again, and its build comes from the cache."""

    def __init__(self, options: TuneOptions, folder: RunFolder, registry: Registry, target: Target, watcher: Watcher,
                 backends: Sequence[Backend]) -> None:
        self._options, self._folder, self._registry = options, folder, registry
        self._target, self._watcher = target, watcher
        self._backends = {backend.name: backend for backend in backends}
        self._known: dict[tuple[str, str], Trial] = {}
        for data in folder.of(Event.TRIAL):
            trial = trial_from_json(data["trial"])
            self._known[trial.candidate_hash, trial.workload] = trial
        self._kept: set[int] = set()  # numbers of kernels
        self._seed = secrets.randbelow(1 << 31)  # of the checks' inputs: nothing can be fitted to them
        self._workers = len(os.sched_getaffinity(0))

    def all(self, tasks: Sequence[Task]) -> OfflineResult:
        spaces = {task.problem.key: Space(task, self._templates(task), self._target) for task in tasks}
        unfit = tuple(key for key, space in spaces.items() if not space.points)
        for key in unfit:
            reasons = "; ".join(dict.fromkeys(reason for _, reason in spaces[key].refused)) or "there is none"
            self._watcher.note(f"no template fits {key}: {reasons}")
        fitting = [task for task in tasks if task.problem.key not in unfit]
        share = shares(fitting, {b.workload.key: self._limit(b.workload) for t in fitting for b in t.buckets})
        order = sorted(fitting, key=lambda task: -sum(share[b.workload.key] for b in task.buckets))
        for task in order:
            self._write_task(spaces[task.problem.key], share)
        for n, task in enumerate(order):
            left = self._options.budget_seconds - self._folder.used_seconds
            enough = self._options.max_trials and len(self._known) >= self._options.max_trials
            if left <= 0 or enough:
                self._watcher.note(f"{'out of trials' if enough else 'out of time'} before {task.problem.key}")
                continue
            # Time goes by weight, but no problem gets less than half of an even part.
            weights = [sum(share[b.workload.key] for b in t.buckets) + 0.5 / len(order) for t in order[n:]]
            self._one(spaces[task.problem.key], left * weights[0] / sum(weights))
        trials = list(self._known.values())
        reached = {data["task"] for data in self._folder.of(Event.TRIAL)}
        failed = sum(t.failure is not None for t in trials)
        return OfflineResult(self._folder.id, len(fitting), len(reached), len(trials), failed,
                             sum(bool(t.checked) and t.failure is None for t in trials), len(self._kept), unfit)

    def _templates(self, task: Task) -> list[Template]:
        """Those of the target's backends; for a CPU, whose engine takes no others, only exact ones."""
        found = [t for t in templates.load(task.problem.operator) if t.backend in self._backends]
        if self._target.kind == "cpu":
            found = [t for t in found if t.numerics is NumericsClass.EXACT]
        return sorted(found, key=lambda t: (-t.demand, t.path))

    def _one(self, space: Space, seconds: float) -> None:
        """Builds points of a problem, checks those predicted fastest, and keeps what is right."""
        until = time.monotonic() + seconds
        self._watcher.stage(f"building for {self._target.name}")
        ready = self._build(space, time.monotonic() + _BUILD_SHARE * seconds)
        self._watcher.stage(f"checking without {self._target.name}")
        right: dict[str, list[_Built]] = {b.workload.key: [] for b in space.task.buckets}
        wrong = 0
        for built in sorted(ready, key=lambda b: b.predicted):
            if wrong >= _WRONG or all(len(found) >= KEPT for found in right.values()):
                break
            if time.monotonic() > until and any(right.values()):
                break
            fine = True
            for bucket, report in zip(space.task.buckets, built.reports, strict=True):
                fine = fine and self._check(space, built, bucket, report)
                if fine:
                    right[bucket.workload.key].append(built)
            wrong += not fine
        for bucket in space.task.buckets:
            for built in right[bucket.workload.key][:KEPT]:
                self._keep(space, built, bucket)

    def _order(self, space: Space) -> list[Point]:
        """The defaults first, the one predicted fastest ahead; then points spread over the space."""
        heights = {p.rows for p in space.points}
        own = {space.default_rows} if space.default_rows in heights else heights
        first = sorted((p for p in space.defaults if p.rows in own),
                       key=lambda p: self._predicted(space, p))
        rest = [p for p in space.points if p.rows in own and p not in first]
        stride = max(1, len(rest) // _MOST_BUILT)
        return [*first, *rest[::stride]][:_MOST_BUILT]

    def _predicted(self, space: Space, point: Point) -> float:
        try:
            return space.predicted(point, self._target.cores)
        except KforgeError:  # a figure that the target lacks
            return math.inf

    def _build(self, space: Space, until: float) -> list[_Built]:
        """Built side by side, a batch at a time, until time is up; at least one batch."""
        found: list[_Built] = []
        waiting = self._order(space)
        with ThreadPoolExecutor(max_workers=self._workers) as pool:
            while waiting and (not found or time.monotonic() < until):
                batch, waiting = waiting[: self._workers], waiting[self._workers :]
                made = [m for m in (self._render(space, point) for point in batch) if m is not None]
                artifacts = pool.map(lambda c: self._backends[c.backend].build(c, self._target), [c for _, c in made])
                for (point, candidate), artifact in zip(made, artifacts, strict=True):
                    if isinstance(artifact, Failure):
                        bucket = space.task.buckets[0]
                        self._write(space, point, bucket, replace(self._trial(space, point, candidate, bucket),
                                                                  failure=artifact))
                        continue
                    found.append(_Built(point, candidate, artifact, self._reports(space, point, candidate, artifact)))
        unlike: dict[str, _Built] = {}  # the same machine code is checked once; the first keeps its place
        for built in found:
            unlike.setdefault(built.artifact.hash, built)
        return list(unlike.values())

    def _render(self, space: Space, point: Point) -> tuple[Point, Candidate] | None:
        try:
            return point, space.render(point)
        except TemplateError as error:
            self._watcher.note(f"{point.name}: {error.failure.reason}")
            return None

    def _reports(self, space: Space, point: Point, candidate: Candidate,
                 artifact: Artifact) -> tuple[StaticReport, ...]:
        backend = self._backends[candidate.backend]
        workloads = [space.task.workload(bucket, point.rows) for bucket in space.task.buckets]
        return tuple(backend.inspect(artifact, workload, self._target) for workload in workloads)

    def _check(self, space: Space, built: _Built, bucket: Bucket, report: StaticReport) -> bool:
        """Whether it is right at a bucket; written down before it is used."""
        workload = space.task.workload(bucket, built.point.rows)
        if (known := self._known.get((built.candidate.hash, workload.key))) is not None:
            return known.failure is None
        trial = replace(self._trial(space, built.point, built.candidate, bucket), artifact_hash=built.artifact.hash,
                        build_seconds=built.artifact.report.seconds, predicted_seconds=report.seconds)
        backend = self._backends[built.candidate.backend]
        found = check_offline(backend, built.candidate, workload, self._target, self._seed,
                              threads=_CPU_THREADS if self._target.kind == "cpu" else 1)
        if isinstance(found, CheckedOffline):
            trial = replace(trial, checked=found.where, max_error_ratio=found.max_error_ratio, processes=1)
        else:
            trial = replace(trial, failure=found, processes=1)
        self._write(space, built.point, bucket, trial)
        return trial.failure is None

    def _trial(self, space: Space, point: Point, candidate: Candidate, bucket: Bucket) -> Trial:
        workload = space.task.workload(bucket, point.rows)
        return Trial(candidate.hash, workload.key, candidate.params, candidate.template,
                     roofline_seconds=self._limit(workload))

    def _write(self, space: Space, point: Point, bucket: Bucket, trial: Trial) -> None:
        if (trial.candidate_hash, trial.workload) in self._known:
            return
        task = space.task.problem.key
        self._folder.write(Event.TRIAL, {"task": task, "bucket": bucket.workload.key, "rows": point.rows,
                                         "proposer": "builtin", "trial": trial_to_json(trial)})
        self._registry.record_trial(self._folder.id, self._target.identity, space.task.at(point.rows), trial)
        self._known[trial.candidate_hash, trial.workload] = trial
        self._watcher.trial(Progress(
            task=task, point=point.name, bucket=bucket.workload.point, seconds=None,
            failure=trial.failure.kind.value if trial.failure else "", best=0.0, limit=trial.roofline_seconds,
            trials=len(self._known), used_seconds=self._folder.used_seconds,
            budget_seconds=self._options.budget_seconds, checked=trial.checked))

    def _keep(self, space: Space, built: _Built, bucket: Bucket) -> None:
        """Into the registry, with what is known of it."""
        workload = space.task.workload(bucket, built.point.rows)
        trial = self._known[built.candidate.hash, workload.key]
        report = built.reports[space.task.buckets.index(bucket)]
        nothing = Verdict(Decision.UNDECIDED, built.candidate.hash, "", 0.0, 0.0, 0.0, 0, 0, 0.0)
        kernel = record_of(built.candidate, built.artifact, nothing, None, workload, self._target, self._folder.id,
                           Seconds(0.0, 0.0))
        evidence: dict[str, object] = {"checked": trial.checked, "max_error_ratio": trial.max_error_ratio,
                                       "static": asdict(report)}
        self._kept.add(self._registry.keep_checked(kernel, built.artifact.data, built.candidate.source, trial.checked,
                                                   evidence))

    def _limit(self, workload: Workload) -> float:
        """The roofline's seconds of one call; 0 where the target has no figure for it."""
        try:
            cost = get(workload.problem.operator).cost(workload)
            return time_limit(cost, self._target, self._options.threads).seconds
        except KforgeError:
            return 0.0

    def _write_task(self, space: Space, share: dict[str, float]) -> None:
        task = space.task
        if any(d["task"] == task.problem.key for d in self._folder.of(Event.TASK)):
            return
        self._folder.write(Event.TASK, {
            "task": task.problem.key, "points": len(space.points), "promise": 0.0,
            "refused": [{"template": t, "reason": r} for t, r in space.refused],
            "buckets": [{"bucket": b.workload.key, "share": share[b.workload.key], "limit": self._limit(b.workload),
                         "calls": dict(b.calls)} for b in task.buckets]})
