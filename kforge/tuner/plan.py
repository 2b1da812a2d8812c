"""What to tune: problems with their buckets, weighted by their share of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kforge.core.workload import Problem, Workload
from kforge.models.workloads import WorkloadRow

ROWS_CHOICES = (16, 32, 64)


@dataclass(frozen=True)
class Bucket:
    """A tuning point. ``calls`` maps a mode's name to the calls per step of that mode that land in it."""

    workload: Workload
    calls: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Task:
    """A problem without its layout, and the buckets at which a model calls it."""

    problem: Problem
    buckets: tuple[Bucket, ...]

    @property
    def packed(self) -> bool:
        """Whether a packed weight's panel height is part of the problem."""
        return self.problem.operator in ("linear", "embedding")

    def at(self, rows: int) -> Problem:
        """The problem with its layout; ``rows`` is ignored where there is no packed weight."""
        return self.problem.with_rows(rows) if self.packed else self.problem

    def workload(self, bucket: Bucket, rows: int) -> Workload:
        return Workload(self.at(rows), bucket.workload.dynamic, bucket.workload.count, bucket.workload.phase)

    def rows_choices(self) -> tuple[int, ...]:
        """Panel heights worth trying: silu_gate needs 16 gate rows beside 16 up rows."""
        if not self.packed:
            return (0,)
        gated = dict(self.problem.static).get("epilogue") == "silu_gate"
        return tuple(r for r in ROWS_CHOICES if r >= 32 or not gated)


BucketOf = Callable[[Problem, Mapping[str, int]], dict[str, int]]


def plan(rows: Sequence[WorkloadRow], bucket_of: BucketOf) -> list[Task]:
    """Group the calls of all modes into tasks and buckets, in order of first appearance.

    A bucket's workload keeps the axes of the first call that lands in it for those axes that its bucket leaves open.
    """
    calls: dict[Problem, dict[tuple, dict[str, float]]] = {}
    first: dict[tuple, Workload] = {}
    for row in rows:
        workload, mode = row.workload, row.mode.name
        problem = workload.problem.without_layout
        point = tuple(sorted(bucket_of(workload.problem, workload.axes).items()))
        axes = {**workload.axes, **dict(point)}
        first.setdefault((problem, point), Workload.of(workload.problem, phase=workload.phase, **axes))
        per_mode = calls.setdefault(problem, {}).setdefault(point, {})
        per_mode[mode] = per_mode.get(mode, 0.0) + workload.count
    return [
        Task(
            problem, tuple(Bucket(first[problem, point], tuple(per_mode.items())) for point, per_mode in points.items())
        )
        for problem, points in calls.items()
    ]


def shares(tasks: Sequence[Task], seconds: Mapping[str, float]) -> dict[str, float]:
    """Share of each bucket (key: its workload's key) in a step, averaged over the modes; adds up to 1.

    ``seconds`` maps a workload's key to the seconds of one call now.
    """
    totals: dict[str, float] = {}
    for task in tasks:
        for bucket in task.buckets:
            for mode, count in bucket.calls:
                totals[mode] = totals.get(mode, 0.0) + count * seconds.get(bucket.workload.key, 0.0)
    return {
        bucket.workload.key: sum(
            count * seconds.get(bucket.workload.key, 0.0) / totals[mode]
            for mode, count in bucket.calls
            if totals[mode] > 0
        )
        / len(totals)
        for task in tasks
        for bucket in task.buckets
    }
