"""The roofline: the least time that a target's limits allow a call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kforge.core.errors import KforgeError
from kforge.core.target import Target

if TYPE_CHECKING:
    from kforge.operators.base import Cost

MEMORY = "memory"


@dataclass(frozen=True)
class Limit:
    """The least seconds of a call: ``seconds`` is the larger of its two parts."""

    seconds: float
    bound_by: str  # "memory" or the peak's name, such as "int8_dot"
    memory_seconds: float
    compute_seconds: float
    bandwidth: float  # bytes/s that it was drawn with
    intensity: float  # operations per streamed byte; inf when nothing is streamed


def time_limit(cost: Cost, target: Target, threads: int | None = None, bandwidth: float | None = None) -> Limit:
    """Streamed bytes over bandwidth or operations over peak, whichever is more, with ``threads`` (default: all cores).

    ``bandwidth`` (bytes/s) replaces the target's stored figure by one measured a moment ago. Peaks scale with the share
    of cores in use. Several kinds of operations count as overlapping, and bytes in cache as free: it is a bound from
    below (Williams, Waterman and Patterson, "Roofline", CACM 2009). Raises KforgeError when the target lacks a figure
    that is needed.
    """
    used = min(threads or target.cores, target.cores)
    speed = bandwidth or target.best_bandwidth(used)
    if cost.streamed_bytes and not speed:
        raise KforgeError(f"target {target.name} has no bandwidth figure: probe it, or add one to its file")
    memory = cost.streamed_bytes / speed if cost.streamed_bytes else 0.0
    compute, peak_name = 0.0, ""
    for name, count in cost.operations:
        peak = target.peak(name) * used / target.cores
        if count and not peak:
            raise KforgeError(f"target {target.name} has no figure for {name}: probe it, or add one to its file")
        seconds = count / peak if count else 0.0
        if seconds > compute:
            compute, peak_name = seconds, name
    total = sum(count for _, count in cost.operations)
    return Limit(seconds=max(memory, compute), bound_by=peak_name if compute > memory else MEMORY,
                 memory_seconds=memory, compute_seconds=compute, bandwidth=speed,
                 intensity=total / cost.streamed_bytes if cost.streamed_bytes else float("inf"))


def fresh_limit(limit: Limit, cost: Cost, target: Target, threads: int) -> Limit:
    """``limit`` drawn anew with what bounds it measured now, in half a second, where that is more than the stored
    figure. The stored ones go stale: the speed of a shared machine's memory changes by half between minutes.
    """
    from kforge.targets.probe import measure_bandwidth, measure_peak

    if limit.bound_by == MEMORY:
        return time_limit(cost, target, threads, max(limit.bandwidth, measure_bandwidth(threads, seconds=0.1).value))
    fresh = measure_peak(limit.bound_by, target.cores)
    peaks = tuple((name, fresh if name == limit.bound_by and fresh.value > peak.value else peak)
                  for name, peak in target.peaks)
    return time_limit(cost, replace(target, peaks=peaks), threads, limit.bandwidth or None)
