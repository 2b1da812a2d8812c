"""The checks of ``kforge doctor``. Each looks and changes nothing, except that folders that tuning needs are made."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir, data_dir, registry_path
from kforge.core.words import counted

_LEAST_FREE = 1 << 30  # bytes: a model, compiled kernels and a run's journal
_BUSY = 0.5  # load per core beyond which timings suffer


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, but slower, less safely or less reproducibly
    PROBLEM = "problem"  # tuning cannot run


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. ``advice``: what to do, "" when nothing is amiss."""

    check: str
    state: State
    text: str
    advice: str = ""


def examine() -> list[Finding]:
    """All checks, in the order in which a newcomer would mend what they find."""
    checks: tuple[tuple[str, Callable[[], list[Finding]]], ...] = (
        ("python", _python),
        ("compiler", _compilers),
        ("torch", _torch),
        ("folders", _folders),
        ("sandbox", _sandbox),
        ("cgroup", _cgroup),
        ("target", _target),
        ("judge", _judge),
        ("registry", _registry),
        ("memory", _huge_pages),
        ("load", _load),
    )
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check()
        except KforgeError as error:
            findings.append(Finding(name, State.PROBLEM, str(error), "see above; mend it and run kforge doctor again"))
    return findings


def _python() -> list[Finding]:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return [Finding("python", State.PROBLEM, text, "kernels are tuned on Linux, x86-64; only torch works here")]
    return [Finding("python", State.OK, text)]


def _compilers() -> list[Finding]:
    from kforge.native import find_compilers
    from kforge.native.compilers import OLDEST

    found = find_compilers()
    wanted = f"g++ >= {OLDEST['g++']} or clang++ >= {OLDEST['clang++']}"
    if not found:
        return [Finding("compiler", State.PROBLEM, "no usable C++ compiler", f"install {wanted}, or point CXX at one")]
    findings = [Finding("compiler", State.OK, f"{c.name} {c.version} ({c.path})") for c in found]
    if len({c.name for c in found}) == 1:
        other = "clang++" if found[0].name == "g++" else "g++"
        findings.append(Finding("compiler", State.OK, f"no {other}: kernels are built by {found[0].name} alone"))
    return findings


def _torch() -> list[Finding]:
    from importlib import metadata

    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return [Finding("torch", State.PROBLEM, "not installed", "pip install torch (the CPU build is enough)")]
    if "+cpu" in version:
        build = "CPU build"
    elif "+" in version:
        build = f"built for {version.partition('+')[2]}; kforge uses its CPU part"
    else:
        build = "build not named in its version"
    return [Finding("torch", State.OK, f"{version}, {build}")]


def _folders() -> list[Finding]:
    return [_folder("cache", cache_dir(), "KFORGE_CACHE"), _folder("data", data_dir(), "KFORGE_HOME")]


def _folder(name: str, path: Path, variable: str) -> Finding:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"kforge")
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(
            name,
            State.PROBLEM,
            f"{path} cannot be written: {error.strerror}",
            f"set {variable} to a folder that you may write to",
        )
    text = f"{path}, {free / 2**30:.1f} GiB free"
    if free < _LEAST_FREE:
        return Finding(name, State.WARNING, text, f"free some space, or set {variable} to a folder with 1 GiB or more")
    return Finding(name, State.OK, text)


def _sandbox() -> list[Finding]:
    from kforge.harness.proof import proven
    from kforge.native import find_compilers

    if not find_compilers():
        return [
            Finding("sandbox", State.PROBLEM, "not tried: its launcher is compiled first", "install a C++ compiler")
        ]
    findings = []
    for p in proven().promises:
        where = f"{p.step}: {p.rests_on}"
        if p.holds:
            findings.append(Finding("sandbox", State.OK, f"{where}: {p.meaning} (proven by trial)"))
        elif p.needed:
            text = f"{where} does not hold, so not: {p.meaning}"
            advice = f"{p.advice}; until then candidates run only where they are trusted: --trust-candidates"
            findings.append(Finding("sandbox", State.PROBLEM, text, advice))
        else:
            findings.append(
                Finding("sandbox", State.WARNING, f"{where} does not hold, one layer less: {p.meaning}", p.advice)
            )
    return findings


def _cgroup() -> list[Finding]:
    """Looked at and not used: the sandbox's own limits hold for each process, a control group's for all together."""
    from kforge.harness.sandbox.cgroup import limits

    found = limits()
    if not found.where:
        return [Finding("cgroup", State.OK, "no control group is to be seen: nothing bounds all processes together")]
    parts = [
        f"memory at most {found.memory_bytes / 2**30:.1f} GiB" if found.memory_bytes else "memory not bounded",
        f"at most {found.processes} processes" if found.processes else "processes not bounded",
    ]
    return [Finding("cgroup", State.OK, f"{found.where}: {', '.join(parts)} for all together (not kforge's doing)")]


def _target() -> list[Finding]:
    from kforge.native import find_compilers
    from kforge.targets.cpu import read_cpu
    from kforge.targets.files import load_target

    facts = read_cpu()
    here = f"{facts.model}, {facts.cores} cores"
    path = data_dir() / "targets" / "host.toml"
    if not path.is_file():
        return [
            Finding(
                "target",
                State.WARNING,
                f"{here}: not probed yet",
                "kforge target probe (a few idle seconds), or let the first tune do it",
            )
        ]
    try:
        kept = load_target(path)
    except KforgeError as error:
        return [Finding("target", State.WARNING, str(error), "kforge target probe replaces it")]
    differs = {
        "CPU": kept.model != facts.model,
        "features": kept.features != facts.features,
        "cores": kept.cores != facts.cores,
        "compilers": kept.compilers != find_compilers(),
    }
    changed = [name for name, different in differs.items() if different]
    if changed:
        return [
            Finding(
                "target",
                State.WARNING,
                f"{here}: {', '.join(changed)} changed since it was probed",
                "kforge target probe, or let the next tune do it",
            )
        ]
    if not kept.bandwidth or not kept.peaks:
        return [
            Finding(
                "target", State.WARNING, f"{here}: probed without a compiler, no limits measured", "kforge target probe"
            )
        ]
    peaks = ", ".join(f"{name} {peak.value / 1e9:.0f} Gop/s" for name, peak in kept.peaks)
    findings = [Finding("target", State.OK, f"{here}: {kept.best_bandwidth() / 1e9:.1f} GB/s, {peaks}")]
    noisy = max(p.spread for _, p in (*kept.bandwidth, *kept.peaks))
    if noisy > 0.2:
        findings.append(
            Finding(
                "target",
                State.WARNING,
                f"its samples spread by {100 * noisy:.0f} %: a busy machine",
                "probe again when it is idle: kforge target probe",
            )
        )
    return findings


def _judge() -> list[Finding]:
    from kforge.targets.files import load_target
    from kforge.targets.noise import calibrations

    path = data_dir() / "targets" / "host.toml"
    try:
        kept = calibrations(load_target(path)) if path.is_file() else ()
    except KforgeError as error:
        return [Finding("judge", State.WARNING, str(error), "kforge judge calibrate replaces it")]
    if not kept:
        return [
            Finding(
                "judge",
                State.WARNING,
                "never calibrated on this machine: cautious defaults, small gains are not accepted",
                "kforge judge calibrate, on an idle machine; its budget is yours to set",
            )
        ]
    return [Finding("judge", State.OK, noise.summary()) for noise in kept]


def _registry() -> list[Finding]:
    from kforge.core.kernel import KernelState
    from kforge.registry.snapshot import read

    path = registry_path()
    if not path.exists():
        return [Finding("registry", State.OK, f"{path}: none yet, the first tune makes it")]
    try:
        kernels = read(path).kernels
        schema = _schema(path)
    except KforgeError as error:
        return [Finding("registry", State.PROBLEM, str(error), "or set KFORGE_HOME to start another registry")]
    held, promoted = counted(len(kernels), "kernel"), sum(k.state is KernelState.PROMOTED for k in kernels)
    return [Finding("registry", State.OK, f"{path}: schema {schema}, {held}, {promoted} promoted")]


def _schema(path: Path) -> str:
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return str(connection.execute("select version_num from alembic_version").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise KforgeError(f"registry {path} cannot be read: {error}; move it away or restore it") from error


def _huge_pages() -> list[Finding]:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        chosen = path.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        chosen = "not built into this kernel"
    if chosen in ("always", "madvise"):
        return [Finding("memory", State.OK, f"transparent huge pages: {chosen}")]
    return [
        Finding(
            "memory",
            State.WARNING,
            f"transparent huge pages: {chosen}; small pages read slower",
            f"echo madvise > {path} (as root)",
        )
    ]


def _load() -> list[Finding]:
    try:
        usable = len(os.sched_getaffinity(0))
        load = os.getloadavg()[0]
    except OSError:
        return []
    text = f"load {load:.1f} on {usable} CPUs"
    if load > _BUSY * usable:
        return [
            Finding(
                "load",
                State.WARNING,
                f"{text}: other work disturbs timings",
                "tune on an idle machine; judged comparisons are interleaved and still hold, they take longer",
            )
        ]
    return [Finding("load", State.OK, text)]
