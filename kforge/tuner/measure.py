"""Points taken through the harness at every bucket of their task, each result written down before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from kforge.backends.building import build
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure, Timing, Trial
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.registry.database import Registry
from kforge.tuner.journal import Event, RunFolder, trial_from_json, trial_to_json
from kforge.tuner.plan import Bucket, Task
from kforge.tuner.points import Point, Space
from kforge.tuner.progress import Progress, Watcher

CUT_RATIO = 2.0  # a candidate this much slower than the best so far is timed only briefly
HOPELESS = 4.0  # and this much slower in one bucket, not at all in the others


class Measurer:
    """Runs trials once: what the journal already holds is never measured again."""

    def __init__(
        self, folder: RunFolder, registry: Registry, harness: Harness, target: Target, watcher: Watcher, budget: float
    ):
        self._folder, self._registry, self._harness = folder, registry, harness
        self._target, self._watcher, self._budget = target, watcher, budget
        self._done: dict[tuple[str, str], Trial] = {}
        self._by_code: dict[tuple[str, str], Trial] = {}  # artifact and workload: what worked
        self._best: dict[str, float] = {}
        if folder.damaged:
            watcher.note(f"{folder.damaged} lines of {folder.path}/journal.jsonl are damaged; their part is done again")
        recorded = registry.recorded(folder.id)
        for data in folder.of(Event.TRIAL):
            trial = trial_from_json(data["trial"])
            self._remember(data["bucket"], trial)
            if (trial.workload, trial.candidate_hash) not in recorded:  # killed between the journal and the registry
                registry.record_trial(folder.id, target.identity, Workload.parse(trial.workload).problem, trial)

    @property
    def trials(self) -> int:
        return len(self._done)

    def known(self, candidate_hash: str, workload_key: str) -> Trial | None:
        return self._done.get((candidate_hash, workload_key))

    def empty_call(self, task: Task) -> Timing | None:
        """Of a kernel that does nothing, measured once in a run, at ``task``; None where that failed."""
        if known := self._folder.of(Event.EMPTY_CALL):
            return Timing(**known[0]["timing"]) if known[0]["timing"] else None
        found = self._harness.empty_call(task.workload(task.buckets[0], DEFAULT_ROWS))
        timing = None if isinstance(found, Failure) else found
        reason = found.reason if isinstance(found, Failure) else ""
        self._folder.write(Event.EMPTY_CALL, {"timing": asdict(timing) if timing else None, "reason": reason})
        return timing

    def prebuild(self, candidates: Sequence[Candidate]) -> None:
        """Compile side by side before anything is timed: a compiler beside a measurement would disturb it."""
        fresh = [c for c in candidates if not any(h == c.hash for h, _ in self._done)]
        with self._harness.turn, ThreadPoolExecutor(max_workers=self._target.cores) as pool:
            list(pool.map(lambda c: build(c, self._target), fresh))

    def measure(self, space: Space, point: Point, candidate: Candidate) -> dict[str, float]:
        """Seconds per call by bucket (key of the bucket's own workload); a bucket where it failed is missing."""
        seconds: dict[str, float] = {}
        for bucket in space.task.buckets:
            trial = self._one(space, point, candidate, bucket)
            if trial.timing is None or trial.failure is not None:
                break  # what fails in one bucket is not worth the others' time
            seconds[bucket.workload.key] = trial.timing.seconds
            if trial.timing.seconds > HOPELESS * self._best.get(bucket.workload.key, trial.timing.seconds):
                break  # nor is what is far behind
        return seconds

    def _one(self, space: Space, point: Point, candidate: Candidate, bucket: Bucket) -> Trial:
        workload = space.task.workload(bucket, point.rows)
        if (known := self.known(candidate.hash, workload.key)) is not None:
            return known
        best = self._best.get(bucket.workload.key)
        trial = self._twin(candidate, workload) or self._harness.evaluate(
            candidate, workload, cut_above=CUT_RATIO * best if best else None
        )
        self._folder.write(
            Event.TRIAL,
            {
                "task": space.task.problem.key,
                "bucket": bucket.workload.key,
                "rows": point.rows,
                "proposer": candidate.proposer,
                "trial": trial_to_json(trial),
            },
        )
        self._registry.record_trial(self._folder.id, self._target.identity, candidate.problem, trial)
        self._remember(bucket.workload.key, trial)
        self._watcher.trial(
            Progress(
                task=space.task.problem.key,
                point=point.name,
                bucket=bucket.workload.point,
                seconds=trial.timing.seconds if trial.timing else None,
                failure=trial.failure.kind.value if trial.failure else "",
                best=self._best.get(bucket.workload.key, 0.0),
                limit=trial.roofline_seconds,
                trials=self.trials,
                used_seconds=self._folder.used_seconds,
                budget_seconds=self._budget,
            )
        )
        return trial

    def _twin(self, candidate: Candidate, workload: Workload) -> Trial | None:
        """The trial of the very same machine code, which other parameters or another template came to."""
        built = build(candidate, self._target)
        same = self._by_code.get((built.hash, workload.key)) if isinstance(built, Artifact) else None
        if same is None:
            return None
        return replace(same, candidate_hash=candidate.hash, params=candidate.params, template=candidate.template)

    def _remember(self, bucket: str, trial: Trial) -> None:
        self._done[trial.candidate_hash, trial.workload] = trial
        if trial.ok and trial.timing is not None:
            self._by_code.setdefault((trial.artifact_hash, trial.workload), trial)
            self._best[bucket] = min(trial.timing.seconds, self._best.get(bucket, trial.timing.seconds))
