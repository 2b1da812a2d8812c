"""What a GPU kernel will take, from its binary and the target's limits: a prediction that ranks, never a measurement.

For each launch, with G groups of W warps of w threads, on U units at clock f:

- *Residency*. A unit holds R groups at a time: the least of what its warps, its limit of blocks, its registers
  (rounded up to the granularity that they are given out in) and its shared memory allow. Occupancy is R W over the
  warps that a unit can hold.
- *Waves*. With S = U R places, ceil(G / S) waves run, each taken to last as long as a full one: work takes
  q = ceil(G / S) S / G times as long as if it could be shared out evenly. Below one wave q is 1, and only min(G, U)
  units compute.
- *Memory*. The bytes that the operator must move (``Operator.cost``) at the bandwidth B. A memory of latency L needs
  B L bytes under way (Little's law); under way are, in each unit, the loads of one pass of the main loop of its
  resident warps, times the stages of a pipeline less one. Where that is too little, the bandwidth is that share of B.
- *Matrices*. The operator's operations at the peak of the instructions found in the main loop (bf16, fp16, tf32, int8,
  fp8), else at that of float32 multiply-adds.
- *Issue*. A pass of the main loop takes so many instructions and loads so many bytes; so the bytes that must be moved
  say how many passes there are in all, and with that the instructions, which a unit issues at i a clock: 4 on NVIDIA
  (four schedulers; CUDA C++ Programming Guide, "Hardware Multithreading"), 1 on AMD with wavefronts of 64 (four SIMDs
  of 16 lanes, four clocks each), 2 with wavefronts of 32 (two SIMDs of 32 lanes; AMD's CDNA 3 and RDNA 3 ISA guides).
  A kernel without a loop runs its instructions once for each warp.

The launch takes ``q max(memory, matrices, issue)`` and a fixed cost of starting. Where several are launched, the one
that loads most in its loop is held to move the operator's bytes, the others to move what their own instructions load,
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kforge.backends.gpu.binary import DeviceBinary, Entry
from kforge.backends.verbs import StaticReport
from kforge.core.errors import KforgeError
from kforge.core.launch import Launch
from kforge.core.target import Gpu, Target
from kforge.core.workload import Workload
from kforge.operators import get

LATENCY = 800e-9  # seconds of a load from memory under load; assumed, vendors do not publish it
START = 2e-6  # seconds of a launch from a graph; assumed
_ISSUE = {32: {"NVIDIA": 4.0, "AMD": 2.0}, 64: {"AMD": 1.0}}  # warp instructions a unit and clock
_SCALAR = ("uniform", "wait", "control", "constant")  # of AMD: issued beside the vector instructions
_ASSUMED = (f"assumed, not known: {LATENCY * 1e9:.0f} ns of memory latency and {START * 1e6:.0f} us to start a launch",
            "caches, bank conflicts, divergence and the waits between instructions are not modelled")


@dataclass(frozen=True)
class Residency:
    """Groups that a unit holds at a time, and what keeps it from holding more."""

    groups: int
    limit: str
    occupancy: float


@dataclass(frozen=True)
class _Predicted:
    seconds: float
    bound: str
    residency: Residency
    groups: int
    waves: int


def residency(entry: Entry, target: Target) -> Residency:
    """Raises KforgeError where the target's file lacks a limit that this needs."""
    gpu = _gpu(target)
    warps_per_unit = _known(gpu.warps_per_unit, "warps_per_unit", target)
    resources = dict(entry.resources)
    step = gpu.register_granularity or 1
    registers = max(1, -(-resources["registers"] // step) * step) * entry.warp * entry.warps
    shared = entry.shared_bytes + resources["static_shared_bytes"]
    allowed = {"warps": warps_per_unit // entry.warps,
               "registers": _known(gpu.registers_per_unit, "registers_per_unit", target) // registers}
    if gpu.blocks_per_unit is not None:
        allowed["groups"] = gpu.blocks_per_unit
    if shared:
        allowed["shared memory"] = _known(gpu.shared_per_unit, "shared_per_unit", target) // shared
    limit = min(allowed, key=lambda name: allowed[name])
    groups = allowed[limit]
    return Residency(groups, limit, min(1.0, groups * entry.warps / warps_per_unit))


def report(binary: DeviceBinary, workload: Workload, target: Target) -> StaticReport:
    """Of one call. Raises KforgeError where the target's file lacks what this needs."""
    axes = workload.axes
    main = max(binary.launches, key=lambda launch: _loaded(launch, binary.entry(launch), axes))
    parts = [_predicted(launch, binary.entry(launch), workload, target, launch is main) for launch in binary.launches]
    entry, at = binary.entry(main), parts[binary.launches.index(main)]
    resources = dict(entry.resources)
    shown = [("registers", resources["registers"]), ("spill_bytes", resources["spill_bytes"]),
             ("shared_bytes", entry.shared_bytes + resources["static_shared_bytes"]), ("warps", entry.warps),
             ("groups", at.groups), ("groups_per_unit", at.residency.groups), ("waves", at.waves),
             ("launches", len(parts))]
    shown += _stages(entry, target)
    notes = [*_ASSUMED, f"{at.residency.limit} keep a unit from holding more than {at.residency.groups} groups"]
    if resources["spill_bytes"]:
        notes.append(f"a thread spills {resources['spill_bytes']} bytes: their traffic is not in the time")
    if dict(entry.mix).get("load_global", 0) + dict(entry.mix).get("copy_async", 0) == 0:
        notes.append("the main loop loads nothing that could be seen: how often it runs is not known")
    if _gpu(target).clock_hz is None:
        notes.append(f"the clock of {target.name} is not published: issuing instructions is not timed")
    if entry.kind == "hsaco":
        notes.append("instructions are the compiler's assembly's: there is no disassembler for AMD here")
    return StaticReport(tuple(shown), entry.mix, at.residency.occupancy, sum(p.seconds for p in parts),
                        at.bound, tuple(notes))


def _predicted(launch: Launch, entry: Entry, workload: Workload, target: Target, main: bool) -> _Predicted:
    gpu = _gpu(target)
    count = 1
    for n in launch.groups(workload.axes):
        count *= n
    held = residency(entry, target)
    if count == 0:
        return _Predicted(0.0, "nothing", held, 0, 0)
    if held.groups == 0:
        raise KforgeError(f"a unit of {target.name} cannot hold one group of {launch.entry}: {held.limit}")
    places = target.cores * held.groups
    waves = -(-count // places)
    uneven = waves * places / count if count > places else 1.0
    resources, threads = dict(entry.resources), entry.warps * entry.warp
    cost = get(workload.problem.operator).cost(workload)
    once = count * threads * resources["loop_load_bytes"]
    moved = cost.streamed_bytes + cost.hot_bytes if main else once
    stages = resources.get("stages", 1) if dict(entry.mix).get("copy_async") else 2
    under_way = min(held.groups, count / target.cores) * threads * resources["loop_load_bytes"] * max(stages - 1, 1)
    bandwidth = target.best_bandwidth()
    needed = bandwidth * LATENCY / target.cores
    reached = min(1.0, under_way / needed) if under_way else 1.0
    times = {"memory" if reached == 1.0 else "memory latency": moved / (bandwidth * reached)}
    passes = max(1.0, moved / once) if once and resources["has_loop"] else 1.0
    instructions = resources["loop_instructions"]
    if target.vendor == "AMD":
        instructions -= sum(n for name, n in entry.mix if name in _SCALAR)
    busy = min(count, target.cores)
    if gpu.clock_hz is not None:
        rate = _ISSUE[entry.warp][target.vendor] * gpu.clock_hz
        times["issue"] = passes * count * entry.warps * instructions / (busy * rate)
    if main:
        name, peak = _peak(entry, target)
        times[name] = sum(n for _, n in cost.operations) / (peak * busy / target.cores) if peak else 0.0
    bound = max(times, key=lambda name: times[name])
    seconds = times[bound] * uneven
    return _Predicted(START + seconds, bound if seconds > START else "launch", held, count, waves)


def _loaded(launch: Launch, entry: Entry, axes: Mapping[str, int]) -> tuple[int, int]:
    """What orders launches by weight: a loop before none, then what one pass of all groups loads."""
    resources = dict(entry.resources)
    count = 1
    for n in launch.groups(axes):
        count *= n
    return resources["has_loop"], count * entry.warps * entry.warp * resources["loop_load_bytes"]


def _peak(entry: Entry, target: Target) -> tuple[str, float]:
    """The limit of computation and its operations a second; 0.0 where the target's file does not say."""
    kinds = [name.removeprefix("mma_") for name, _ in entry.mix if name.startswith("mma_")]
    if kinds and target.peak(f"{kinds[0]}_dot"):
        return f"{kinds[0]} matrices", target.peak(f"{kinds[0]}_dot")
    return "float32", target.peak("fp32_fma")


def _stages(entry: Entry, target: Target) -> list[tuple[str, int]]:
    """Stages of the pipeline, and how many a group's shared memory has room for."""
    stages, most = dict(entry.resources).get("stages", 1), _gpu(target).shared_per_block
    if stages < 2 or not entry.shared_bytes or most is None:
        return []
    return [("stages", stages), ("stages_that_fit", most * stages // entry.shared_bytes)]


def _gpu(target: Target) -> Gpu:
    if target.gpu is None:
        raise KforgeError(f"target {target.name} is no GPU: there is nothing to predict from")
    return target.gpu


def _known(value: int | None, name: str, target: Target) -> int:
    if value is None:
        raise KforgeError(f"target {target.name} does not say gpu.{name}, which a prediction needs")
    return value
