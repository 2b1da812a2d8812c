"""Compiled kernels, cubins or code objects: examined, and made an artifact."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kforge.backends.gpu import cubin, hsaco
from kforge.backends.gpu.binary import MOST_BYTES, DeviceBinary, Entry, unpack
from kforge.backends.gpu.cost import residency
from kforge.backends.gpu.mix import Mix
from kforge.backends.gpu.store import ABI_VERSION
from kforge.core.launch import Argument, ArgumentKind, Launch, LaunchError, evaluate
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, CompilerReport, Failure, FailureClass

_ALIGNED = 16  # bytes
Facts = cubin.Facts | hsaco.Facts
_SIZES = {"axis": 4, "scalar": 4}  # bytes of an argument; the others are 8


@dataclass(frozen=True)
class Compiled:
    """What is known of a compilation beside its binaries."""

    compiler: str
    options: tuple[str, ...]
    seconds: float
    said: str


def packed(candidate: Candidate, target: Target, made: Compiled, data: bytes,
           mixes: Mapping[str, Mix]) -> Artifact | Failure:
    """The artifact of one binary that holds all kernels; ``mixes`` by kernel, of those that could be disassembled.
    ADMISSION for a binary that is not pure computation or does not take what its launches pass."""
    names = tuple(dict.fromkeys(launch.entry for launch in candidate.launches))
    entries = []
    for name in names:
        wanted = [launch for launch in candidate.launches if launch.entry == name]
        facts = examined(data, name, target.arch, names)
        if isinstance(facts, Failure):
            return facts
        entry = _entry(name, facts, wanted[0], mixes.get(name), data)
        if isinstance(entry, Failure):
            return entry
        entries.append(entry)
        for launch in wanted:
            if entry.parameters != sizes(launch):
                return Failure(FailureClass.ADMISSION, f"the kernel {name} takes parameters of {entry.parameters} "
                               f"bytes, its launch passes {sizes(launch)}")
    of = {entry.name: entry for entry in entries}
    launches = tuple(replace(launch, warps=of[launch.entry].warps, arguments=tuple(map(_aligned, launch.arguments)))
                     for launch in candidate.launches)
    return artifact(candidate, target, made, tuple(entries), launches)


def artifact(candidate: Candidate, target: Target, made: Compiled, entries: tuple[Entry, ...],
             launches: tuple[Launch, ...]) -> Artifact | Failure:
    """The container with its report; COMPILE_LIMIT for one that is too large."""
    data = DeviceBinary(target.arch, made.compiler, entries, launches).pack()
    if len(data) > MOST_BYTES:
        return Failure(FailureClass.COMPILE_LIMIT, f"the artifact has {len(data)} bytes, more than {MOST_BYTES}")
    of = [dict(entry.resources) for entry in entries]
    resources = (*((name, max(one[name] for one in of)) for name in ("registers", "spill_bytes")),
                 ("shared_bytes", max(map(shared_bytes, entries))), ("warps", max(entry.warps for entry in entries)))
    report = CompilerReport(made.compiler, made.options, made.seconds, sum(one["text_bytes"] for one in of),
                            sum(dict(entry.mix).get("spill", 0) for entry in entries), _heaviest(entries).mix,
                            made.said[:4000], resources)
    return Artifact(candidate.backend, candidate.hash, data, ABI_VERSION, report, launches)


def examined(data: bytes, kernel: str, arch: str, beside: Collection[str] = ()) -> Facts | Failure:
    """What the binary says of a kernel, or ADMISSION; see ``cubin.examine``."""
    return (cubin if arch.startswith("sm_") else hsaco).examine(data, kernel, arch, beside)


def entry_of(name: str, facts: Facts, mix: Mix | None, data: bytes, warps: int, shared: int = 0,
             more: tuple[tuple[str, int], ...] = ()) -> Entry | Failure:
    """A kernel with its resources; ``mix``: where it could be disassembled; ADMISSION for an instruction that no kernel
    has a use for. ``shared``: dynamic bytes of a group; ``more``: resources that only the compiler knows."""
    if mix is not None and mix.refused:
        return Failure(FailureClass.ADMISSION, f"the binary is refused: {name} has the instruction {mix.refused}")
    resources = [("registers", facts.registers), ("spill_bytes", facts.spill_bytes),
                 ("static_shared_bytes", facts.shared_bytes), ("text_bytes", facts.text_bytes)]
    if isinstance(facts, hsaco.Facts):
        resources += [("scalar_registers", facts.scalar_registers),
                      ("accumulation_registers", facts.accumulation_registers)]
    resources += [("loop_instructions", mix.instructions if mix else 0),
                  ("loop_load_bytes", mix.load_bytes if mix else 0), ("has_loop", int(mix is not None and mix.loop))]
    kind = "cubin" if isinstance(facts, cubin.Facts) else "hsaco"
    return Entry(name, kind, facts.parameters, warps, warp_of(facts), shared, (*resources, *more),
                 mix.classes if mix is not None else (), data)


def warp_of(facts: Facts) -> int:
    """Threads that run together."""
    return facts.wavefront if isinstance(facts, hsaco.Facts) else 32


def sizes(launch: Launch) -> tuple[int, ...]:
    """Bytes of each argument that a launch passes."""
    return tuple(_SIZES.get(argument.kind.value, 8) for argument in launch.arguments)


def shared_bytes(entry: Entry) -> int:
    """Of a group, as its limit counts them: dynamic ones where the language has these, beside which the static ones are
    the driver's own (1 KiB from sm_90 on), else the static ones."""
    return entry.shared_bytes or dict(entry.resources)["static_shared_bytes"]


def unfit(artifact: Artifact, target: Target) -> Failure | None:
    """MEMORY where a group needs more than the target's units have. Chips of one architecture, which share a cache's
    binaries, differ in that: it is asked of what comes from there, too. Raises KforgeError where the target's file
    lacks a limit."""
    if target.gpu is None:
        return None
    for entry in unpack(artifact.data).entries:
        shared, most = shared_bytes(entry), target.gpu.shared_per_block
        if most is not None and shared > most:
            return Failure(FailureClass.MEMORY, f"a group of {entry.name} needs {shared} bytes of shared memory, "
                           f"{target.name} has {most} for one")
        threads, limit = entry.warps * entry.warp, target.gpu.threads_per_block
        if limit is not None and threads > limit:
            return Failure(FailureClass.MEMORY, f"a group of {entry.name} has {threads} threads, {target.name} allows "
                           f"{limit}")
        if not (held := residency(entry, target)).groups:
            return Failure(FailureClass.MEMORY, f"a unit of {target.name} cannot hold one group of {entry.name}: its "
                           f"{held.limit} are too few")
    return None


def _entry(name: str, facts: Facts, launch: Launch, mix: Mix | None, data: bytes) -> Entry | Failure:
    try:
        threads = 1
        for text in launch.block:
            threads *= evaluate(text, dict(launch.constants))
    except LaunchError as error:
        return Failure(FailureClass.TEMPLATE, f"the block of launch {name}: {error}; it must not depend on axes")
    return entry_of(name, facts, mix, data, -(-threads // warp_of(facts)))


def _aligned(argument: Argument) -> Argument:
    """Pointers are read as wide as kforge aligns tensors, of strides nothing is assumed."""
    pointer = argument.kind in (ArgumentKind.TENSOR, ArgumentKind.SCRATCH)
    return replace(argument, multiple=_ALIGNED) if pointer else argument


def _heaviest(entries: tuple[Entry, ...]) -> Entry:
    """The entry whose main loop reads most."""
    return max(entries, key=lambda e: (dict(e.resources)["has_loop"], dict(e.resources)["loop_load_bytes"], e.warps))
