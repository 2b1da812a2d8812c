"""One compiled binary, cubin or code object, that holds all kernels of a candidate: examined, and made an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kforge.backends.gpu import cubin, hsaco
from kforge.backends.gpu.binary import MOST_BYTES, DeviceBinary, Entry
from kforge.backends.gpu.mix import Mix
from kforge.backends.gpu.store import ABI_VERSION
from kforge.core.launch import Argument, ArgumentKind, Launch, LaunchError, evaluate
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, CompilerReport, Failure, FailureClass

_ALIGNED = 16  # bytes
_SIZES = {"axis": 4, "scalar": 4}  # bytes of an argument; the others are 8


@dataclass(frozen=True)
class Compiled:
    """What a compiler left. ``mixes``: by kernel, of those that could be disassembled."""

    compiler: str
    options: tuple[str, ...]
    data: bytes
    mixes: Mapping[str, Mix]
    seconds: float
    said: str


def packed(candidate: Candidate, target: Target, made: Compiled) -> Artifact | Failure:
    """The artifact. ADMISSION for a binary that is not pure computation or does not take what its launches pass, MEMORY
    for groups that the target's units cannot hold."""
    names = tuple(dict.fromkeys(launch.entry for launch in candidate.launches))
    entries = []
    for name in names:
        wanted = [launch for launch in candidate.launches if launch.entry == name]
        entry = _entry(name, names, wanted[0], target.arch, made)
        if isinstance(entry, Failure):
            return entry
        entries.append(entry)
        for launch in wanted:
            sizes = tuple(_SIZES.get(argument.kind.value, 8) for argument in launch.arguments)
            if entry.parameters != sizes:
                return Failure(FailureClass.ADMISSION, f"the kernel {name} takes parameters of {entry.parameters} "
                               f"bytes, its launch passes {sizes}")
    of = {entry.name: entry for entry in entries}
    launches = [replace(launch, warps=of[launch.entry].warps, arguments=tuple(map(_aligned, launch.arguments)))
                for launch in candidate.launches]
    if (unfit := _unfit(entries, target)) is not None:
        return unfit
    data = DeviceBinary(target.arch, made.compiler, tuple(entries), tuple(launches)).pack()
    if len(data) > MOST_BYTES:
        return Failure(FailureClass.COMPILE_LIMIT, f"the artifact has {len(data)} bytes, more than {MOST_BYTES}")
    most = {name: max(dict(entry.resources)[name] for entry in entries)
            for name in ("registers", "spill_bytes", "static_shared_bytes")}
    resources = (("registers", most["registers"]), ("spill_bytes", most["spill_bytes"]),
                 ("shared_bytes", most["static_shared_bytes"]), ("warps", max(entry.warps for entry in entries)))
    report = CompilerReport(made.compiler, made.options, made.seconds,
                            sum(dict(entry.resources)["text_bytes"] for entry in entries),
                            sum(dict(entry.mix).get("spill", 0) for entry in entries), _heaviest(entries).mix,
                            made.said[:4000], resources)
    return Artifact(candidate.backend, candidate.hash, data, ABI_VERSION, report, tuple(launches))


def _entry(name: str, names: tuple[str, ...], launch: Launch, arch: str, made: Compiled) -> Entry | Failure:
    nvidia = arch.startswith("sm_")
    facts = (cubin if nvidia else hsaco).examine(made.data, name, arch, names)
    if isinstance(facts, Failure):
        return facts
    warp = facts.wavefront if isinstance(facts, hsaco.Facts) else 32
    try:
        threads = 1
        for text in launch.block:
            threads *= evaluate(text, dict(launch.constants))
    except LaunchError as error:
        return Failure(FailureClass.TEMPLATE, f"the block of launch {name}: {error}; it must not depend on axes")
    mix = made.mixes.get(name)
    if mix is not None and mix.refused:
        return Failure(FailureClass.ADMISSION, f"the binary is refused: {name} has the instruction {mix.refused}")
    resources = [("registers", facts.registers), ("spill_bytes", facts.spill_bytes),
                 ("static_shared_bytes", facts.shared_bytes), ("text_bytes", facts.text_bytes)]
    if isinstance(facts, hsaco.Facts):
        resources += [("scalar_registers", facts.scalar_registers),
                      ("accumulation_registers", facts.accumulation_registers)]
    resources += [("loop_instructions", mix.instructions if mix else 0),
                  ("loop_load_bytes", mix.load_bytes if mix else 0), ("has_loop", int(mix is not None and mix.loop))]
    return Entry(name, "cubin" if nvidia else "hsaco", facts.parameters, -(-threads // warp), warp, 0, tuple(resources),
                 mix.classes if mix is not None else (), made.data)


def _aligned(argument: Argument) -> Argument:
    """Pointers are read as wide as kforge aligns tensors, of strides nothing is assumed."""
    pointer = argument.kind in (ArgumentKind.TENSOR, ArgumentKind.SCRATCH)
    return replace(argument, multiple=_ALIGNED) if pointer else argument


def _unfit(entries: list[Entry], target: Target) -> Failure | None:
    if target.gpu is None:
        return None
    for entry in entries:
        shared, most = dict(entry.resources)["static_shared_bytes"], target.gpu.shared_per_block
        if most is not None and shared > most:
            return Failure(FailureClass.MEMORY, f"a group of {entry.name} needs {shared} bytes of shared memory, "
                           f"{target.name} has {most} for one")
        threads, limit = entry.warps * entry.warp, target.gpu.threads_per_block
        if limit is not None and threads > limit:
            return Failure(FailureClass.MEMORY, f"a group of {entry.name} has {threads} threads, {target.name} allows "
                           f"{limit}")
    return None


def _heaviest(entries: list[Entry]) -> Entry:
    """The entry whose main loop reads most."""
    return max(entries, key=lambda e: (dict(e.resources)["has_loop"], dict(e.resources)["loop_load_bytes"]))
