"""What to tune: problems with their buckets, weighted by their share of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kforge.core.workload import Problem, Workload
from kforge.models.workloads import WorkloadRow
from kforge.operators import get

ROWS_CHOICES = (16, 32, 64)


@dataclass(frozen=True)
class Bucket:
    """A tuning point. ``calls`` maps a mode's name to the calls per step of that mode that land in it; empty for an
    operator that no model calls."""

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
        return self.problem.operator in ("linear", "embedding", "moe_linear")

    def at(self, rows: int) -> Problem:
        """The problem with its layout; ``rows`` is ignored where there is no packed weight."""
        return self.problem.with_rows(rows) if self.packed else self.problem

    def workload(self, bucket: Bucket, rows: int) -> Workload:
        return Workload(self.at(rows), bucket.workload.dynamic, bucket.workload.count, bucket.workload.phase)

    def rows_choices(self) -> tuple[int, ...]:
        """Panel heights worth trying: a gate needs 16 gate rows beside 16 up rows."""
        if not self.packed:
            return (0,)
        gated = dict(self.problem.static).get("epilogue") in ("silu_gate", "swiglu_oai")
        return tuple(r for r in ROWS_CHOICES if r >= 32 or not gated)


BucketOf = Callable[[Problem, Mapping[str, int]], dict[str, int]]


def bucket_point(problem: Problem, axes: Mapping[str, int]) -> dict[str, int]:
    """The tuning point for these axes, by the operator itself."""
    return get(problem.operator).bucket(problem, axes)


def plan(rows: Sequence[WorkloadRow], bucket_of: BucketOf = bucket_point) -> list[Task]:
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


def task_at(problem: Problem, points: Iterable[Mapping[str, int]]) -> Task:
    """A problem that no model calls, at the buckets of these points of its dynamic axes."""
    wholes = [{**axes, **bucket_point(problem, axes)} for axes in points]
    workloads = [Workload(problem, tuple(sorted(axes.items()))) for axes in wholes]
    return Task(problem, tuple(Bucket(workload, ()) for workload in dict.fromkeys(workloads)))


def shares(tasks: Sequence[Task], seconds: Mapping[str, float]) -> dict[str, float]:
    """Share of each bucket (key: its workload's key) in a step, averaged over the modes; adds up to 1.

    ``seconds`` maps a workload's key to the seconds of one call now. Buckets that no mode calls all count the same.
    """
    buckets = [bucket for task in tasks for bucket in task.buckets]
    if not any(bucket.calls for bucket in buckets):
        return {bucket.workload.key: 1 / len(buckets) for bucket in buckets}
    totals: dict[str, float] = {}
    for bucket in buckets:
        for mode, count in bucket.calls:
            totals[mode] = totals.get(mode, 0.0) + count * seconds.get(bucket.workload.key, 0.0)
    return {
        bucket.workload.key: sum(
            count * seconds.get(bucket.workload.key, 0.0) / totals[mode]
            for mode, count in bucket.calls
            if totals[mode] > 0
        )
        / len(totals)
        for bucket in buckets
    }
