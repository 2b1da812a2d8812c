"""Source to artifact: Triton's compiler in the sandbox, for a named GPU that need not be here, and a cache."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kforge.backends.gpu import mix, store
from kforge.backends.gpu.binary import MOST_BYTES, Entry
from kforge.backends.gpu.compiling import MOST_TEXT, BuildLimits
from kforge.backends.gpu.mix import Mix
from kforge.backends.gpu.packing import Compiled, artifact, entry_of, examined, sizes, unfit
from kforge.backends.triton import source
from kforge.backends.triton.installed import ARCHES, Triton, command, readable, triton
from kforge.backends.triton.signature import ALIGNED, specialised, types
from kforge.core.drafts import draft_folder, left
from kforge.core.errors import KforgeError
from kforge.core.launch import Launch
from kforge.core.paths import cache_dir
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure, FailureClass
from kforge.core.workload import Attr, stable_hash
from kforge.harness.sandbox import Limits, Outcome, run

_ANSWER_BYTES = 1 << 20
_WARPS, _STAGES = 4, 2  # where a template does not say
_OPTIONS = {"cuda": ("num_ctas", "maxnreg"), "hip": ("waves_per_eu", "matrix_instr_nonkdim", "kpack")}
_CHILD = Path(__file__).resolve().parent / "child"
_LIMITS = BuildLimits(240.0, 12 << 30)  # of address space the compiler's own code takes half a gigabyte


@dataclass(frozen=True)
class _Said:
    """What the child says of a kernel: only what a binary does not hold."""

    warps: int
    shared: int
    scratch: int
    ctas: int


def build(candidate: Candidate, target: Target, limits: BuildLimits = _LIMITS) -> Artifact | Failure:
    """The artifact, from the cache when the same was built before. Raises KforgeError without a usable Triton."""
    if not candidate.launches:
        return Failure(FailureClass.TEMPLATE, f"{candidate.template} says no launch: its header needs [[launch]]")
    if (refused := source.admit(candidate.source)) is not None:
        return refused
    found = triton()
    launches = tuple(specialised(launch, candidate.problem) for launch in candidate.launches)
    job = _job(candidate, launches, target, found)
    key = stable_hash([candidate.source, {**job, "triton": found.version}, repr(launches), _scripts(),
                       store.ABI_VERSION], 40)
    folder = cache_dir() / "artifacts"
    if (cached := store.load(folder, key, candidate.backend, candidate.hash)) is not None:
        return unfit(cached, target) or cached
    made = _compiled(candidate, launches, target, found, job, limits)
    if isinstance(made, Failure):
        return made
    store.save(folder, key, made)
    return unfit(made, target) or made


def _job(candidate: Candidate, launches: tuple[Launch, ...], target: Target, found: Triton) -> dict[str, Any]:
    params = dict(candidate.params)
    entries: dict[str, dict[str, Any]] = {}
    for launch in launches:
        entry = {"name": launch.entry, "types": types(launch, candidate.problem),
                 "divisible": [i for i, a in enumerate(launch.arguments) if a.multiple % ALIGNED == 0],
                 "options": _options(params, launch.entry, target.arch)}
        entries.setdefault(launch.entry, entry)
    return {"triton": str(found.folder), "target": ARCHES[target.arch], "entries": list(entries.values())}


def _options(params: Mapping[str, Attr], entry: str, arch: str) -> dict[str, Any]:
    kind = ARCHES[arch][0]
    found: dict[str, Any] = {"num_warps": _WARPS, "num_stages": _STAGES, "enable_fp_fusion": True}
    for name in ("num_warps", "num_stages", *_OPTIONS[kind]):
        value = params.get(f"{name}_{entry}", params.get(name))
        if isinstance(value, int) and (value or name not in _OPTIONS[kind]):  # 0: the compiler's choice
            found[name] = value
    return found


def _scripts() -> str:
    return stable_hash([(_CHILD / name).read_text(encoding="utf-8") for name in ("build.py", "package.py")])


def _compiled(candidate: Candidate, launches: tuple[Launch, ...], target: Target, found: Triton, job: dict[str, Any],
              limits: BuildLimits) -> Artifact | Failure:
    begin = time.monotonic()
    try:
        with draft_folder() as work:
            (work / "kernel.py").write_text(candidate.source, encoding="utf-8")
            (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
            bounds = Limits(limits.seconds, limits.memory_bytes, limits.output_bytes)
            outcome = run(command("build.py"), work, bounds, readable(found))
            answer = _answer(work, outcome, candidate.source, limits, len(job["entries"]))
            if isinstance(answer, Failure):
                return answer
            entries = []
            for number, (wanted, given) in enumerate(zip(job["entries"], answer, strict=True)):
                entry = _entry(work, number, wanted, given, target.arch, found)
                if isinstance(entry, Failure):
                    return entry
                entries.append(entry)
    except OSError as error:  # of kforge's own files
        raise KforgeError(f"cannot build in {tempfile.gettempdir()}: {error.strerror}; free some space, or set TMPDIR "
                          "to another folder") from error
    of = {entry.name: entry for entry in entries}
    launches = tuple(replace(x, warps=of[x.entry].warps, shared_bytes=of[x.entry].shared_bytes) for x in launches)
    for launch in launches:
        if (failure := _wrong_parameters(launch, of[launch.entry])) is not None:
            return failure
    options = tuple(f"{e['name']}: {json.dumps(e['options'], sort_keys=True)}" for e in job["entries"])
    return artifact(candidate, target, Compiled(f"triton {found.version}", options, time.monotonic() - begin,
                                                outcome.text), tuple(entries), launches)


def _entry(work: Path, number: int, wanted: dict[str, Any], given: _Said, arch: str, found: Triton) -> Entry | Failure:
    """The binary as the parent sees it."""
    name = wanted["name"]
    data = left(work / f"{number}.bin", MOST_BYTES)
    facts = examined(data, name, arch)
    if isinstance(facts, Failure):
        return facts
    if not (1 <= given.warps <= 64 and 0 <= given.shared <= 1 << 20) or given.scratch or given.ctas != 1:
        return Failure(FailureClass.ADMISSION, f"{name} needs {given.warps} warps, {given.shared} bytes of shared "
                       f"memory, {given.scratch} of global scratch and clusters of {given.ctas}: it cannot be launched")
    made = _mix(work, number, arch, found)
    if isinstance(made, Failure):
        return made
    return entry_of(name, facts, made, data, given.warps, given.shared, (("stages", wanted["options"]["num_stages"]),))


def _mix(work: Path, number: int, arch: str, found: Triton) -> Mix | Failure:
    """From the disassembled binary; AMD's from the compiler's assembly, since Triton brings no disassembler for it."""
    if not arch.startswith("sm_"):
        return mix.of_gcn(left(work / f"{number}.asm", MOST_TEXT).decode(errors="replace"))
    tool = str(found.disassembler)
    script = f"{tool} -c {number}.bin > {number}.sass"
    outcome = run(("/bin/sh", "-c", script), work, Limits(60, 4 << 30, MOST_TEXT), (tool,))
    if outcome.code != 0:
        return Failure(FailureClass.COMPILE, f"nvdisasm cannot read the binary: {outcome.text.strip()[-300:]}")
    return mix.of_sass(left(work / f"{number}.sass", MOST_TEXT).decode(errors="replace"))


def _wrong_parameters(launch: Launch, entry: Entry) -> Failure | None:
    """The binary's parameters must be the launch's arguments, and behind them nothing but pointers that may be null."""
    wanted = sizes(launch)
    if entry.parameters[:len(wanted)] == wanted and set(entry.parameters[len(wanted):]) <= {8}:
        return None
    return Failure(FailureClass.ADMISSION, f"the binary's parameters have {entry.parameters} bytes, the arguments of "
                   f"launch {launch.entry} {wanted}")


def _answer(work: Path, outcome: Outcome, text: str, limits: BuildLimits, entries: int) -> list[_Said] | Failure:
    if outcome.timed_out:
        return Failure(FailureClass.COMPILE_LIMIT, f"Triton took longer than {limits.seconds:g} s",
                       outcome.text[-2000:])
    try:
        answer = json.loads(left(work / "answer.json", _ANSWER_BYTES))
        if "error" not in answer:
            said_of = [_Said(*(int(given[name]) for name in ("warps", "shared", "scratch", "ctas")))
                       for given in answer["entries"]]
            if len(said_of) != entries:
                raise ValueError("it does not speak of all entries")
            return said_of
        said, line = str(answer["text"]), int(answer.get("line") or 0)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        if outcome.code < 0 and "LLVM ERROR" not in outcome.text and "Assertion" not in outcome.text:
            return Failure(FailureClass.COMPILE_LIMIT, f"Triton ended with signal {-outcome.code}: its limits are "
                           f"{limits.seconds:g} s and {limits.memory_bytes >> 20} MiB", outcome.text[-4000:])
        return Failure(FailureClass.COMPILE, f"Triton's compiler broke down: {outcome.text.strip()[-300:]}",
                       outcome.text[-4000:])
    kind = FailureClass.COMPILE_LIMIT if answer["error"] == "limit" else FailureClass.COMPILE
    where = f"kernel.py:{line}: " if line else ""
    lines = text.splitlines()
    shown = "\n".join(f"{'>' if n == line else ' '}{n:5} {lines[n - 1]}"
                      for n in range(max(1, line - 4), min(len(lines), line + 4) + 1)) if line else ""
    last = [part for part in said.splitlines() if part.strip()][-1:] or ["it does not say why"]
    return Failure(kind, f"triton: {where}{last[0][:300]}", f"{shown}\n{said}\n{outcome.text[-2000:]}".strip())
