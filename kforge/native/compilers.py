"""The system's C++ compilers."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess

from kforge.core.errors import KforgeError
from kforge.core.target import Compiler

OLDEST = {"g++": 12, "clang++": 14}  # complete C++17 with AVX-512 VNNI and BF16 intrinsics
_NEWEST_TRIED = 24


def find_compilers() -> tuple[Compiler, ...]:
    """Usable compilers, preferred first: ``$CXX``, then g++, then clang++, the newest of each.

    Compilers that are too old are left out. Raises KforgeError when ``$CXX`` is set and is not a usable compiler.
    """
    return _found(os.environ.get("CXX", ""), os.environ.get("PATH", "")).usable


def default_compiler() -> Compiler:
    """The preferred compiler. Raises KforgeError when there is none."""
    found = _found(os.environ.get("CXX", ""), os.environ.get("PATH", ""))
    if found.usable:
        return found.usable[0]
    old = "".join(f"; {c.path} is {c.name} {c.version}, which is too old" for c in found.too_old)
    raise KforgeError(f"no C++ compiler found: install g++ >= {OLDEST['g++']} or clang++ >= {OLDEST['clang++']}, "
                      f"or point CXX at one{old}")


def find_cross(arch: str) -> tuple[Compiler, ...]:
    """Usable compilers for programs of ``arch`` ("aarch64") that run here: g++ of the cross toolchain, then clang++.

    clang++ needs a linker for that architecture (the toolchain's, or lld), so without either it is left out.
    """
    path = os.environ.get("PATH", "")
    named = [f"{arch}-linux-gnu-g++", *(f"{arch}-linux-gnu-g++-{n}" for n in range(_NEWEST_TRIED, 11, -1))]
    gcc = next((found for name in named if (where := shutil.which(name, path=path)) and (found := _ask(where))), None)
    linker = shutil.which(f"{arch}-linux-gnu-ld", path=path)
    clang = next((c for c in _found("", path).usable if c.name == "clang++"), None) if linker else None
    return tuple(c for c in (gcc, clang) if c is not None and _major(c) >= OLDEST[c.name])


class _Found:
    def __init__(self, compilers: list[Compiler]) -> None:
        self.usable = tuple(c for c in compilers if _major(c) >= OLDEST[c.name])
        self.too_old = tuple(c for c in compilers if _major(c) < OLDEST[c.name])


@functools.cache
def _found(cxx: str, path: str) -> _Found:
    compilers: list[Compiler] = []
    if cxx:
        compilers.append(_from_environment(cxx))
    for name in ("g++", "clang++"):
        versions: list[Compiler] = []
        files: set[str] = set()
        for command in (name, *(f"{name}-{n}" for n in range(_NEWEST_TRIED, OLDEST[name] - 1, -1))):
            where = shutil.which(command, path=path)
            if where is None or (file := _file(where)) in files:
                continue  # asking costs a process
            files.add(file)
            if (compiler := _ask(where)) is not None:
                versions.append(compiler)
        versions.sort(key=_major, reverse=True)  # stable: the unversioned command wins among equals
        compilers += versions
    unique: list[Compiler] = []
    for compiler in compilers:
        if all((c.name, c.version) != (compiler.name, compiler.version) for c in unique):
            unique.append(compiler)
    return _Found(unique)


def _from_environment(cxx: str) -> Compiler:
    words = [word for word in shlex.split(cxx) if not word.startswith("-")]
    where = shutil.which(words[-1]) if words else None  # the last word: "ccache g++" is a usual value
    compiler = _ask(where) if where else None
    if compiler is None:
        raise KforgeError(f"CXX={cxx!r} is not a C++ compiler that runs; unset it or point it at g++ or clang++")
    return compiler


def _file(path: str) -> str:
    """What a command's link leads to, unless that is a wrapper (ccache) which acts by the name that it is called by."""
    file = os.path.realpath(path)
    return file if any(name in os.path.basename(file) for name in ("g++", "clang")) else path


def _ask(path: str) -> Compiler | None:
    """Name and version by what the compiler itself says, or None when it does not run."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    if match := re.search(r"clang version (\d+(?:\.\d+)*)", text):
        return Compiler(path, "clang++", match[1])
    first = text.splitlines()[0] if text else ""
    if match := re.search(r"(\d+\.\d+(?:\.\d+)?)\s*(?:\d{8})?\s*(?:\(.*\))?$", first):
        return Compiler(path, "g++", match[1])
    return None


def _major(compiler: Compiler) -> int:
    return int(compiler.version.split(".")[0])
