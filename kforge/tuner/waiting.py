"""Kernels that were built and checked for a target before it was at hand: first in line when it appears."""

from __future__ import annotations

from collections.abc import Collection

from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.target import Target
from kforge.operators import get
from kforge.registry.ask import siblings
from kforge.registry.database import Registry
from kforge.registry.snapshot import Snapshot
from kforge.tuner.points import Point, Space


def waiting_points(snapshot: Snapshot, space: Space, target: Target) -> list[Point]:
    """Points of the space that were checked for this target, or for one that differs in its number of cores only, and
    never timed; those that were kept first come first."""
    found = [_point(kernel) for kernel in _waiting(snapshot, space, target)]
    return [point for point in dict.fromkeys(found) if point in space]


def retire_timed(registry: Registry, space: Space, target: Target, timed: Collection[Point], run: str) -> int:
    """Kernels that wait no longer because a run on their very target has timed (or tried) their points at their
    buckets; what became of them stands in its trials. How many they are."""
    contract = get(space.task.problem.operator)
    here = {tuple(sorted(contract.bucket(w.problem, w.axes).items())) for w in (b.workload for b in space.task.buckets)}
    done = [k for k in _waiting(registry.snapshot(), space, target)
            if k.target_identity == target.identity and k.bucket in here and _point(k) in timed]
    for kernel in done:
        registry.set_state(kernel.id, KernelState.RETIRED, f"its device has appeared: timed by run {run}")
    return len(done)


def _waiting(snapshot: Snapshot, space: Space, target: Target) -> list[KernelRecord]:
    identities = (target.identity, *siblings(target))
    return [k for rows in space.task.rows_choices() for k in snapshot.waiting(space.task.at(rows), identities)]


def _point(kernel: KernelRecord) -> Point:
    return Point(kernel.template, kernel.problem.rows, kernel.params)
