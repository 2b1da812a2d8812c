"""C++ compilers of this machine, and which of them builds a candidate."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kforge.core.errors import KforgeError
from kforge.core.target import Compiler, Target

FAMILIES = {"g++": "gcc", "clang++": "clang"}
_NAMES = {"g++": ("g++", *(f"g++-{v}" for v in range(16, 11, -1))),
          "clang++": ("clang++", *(f"clang++-{v}" for v in range(22, 13, -1)))}


@dataclass(frozen=True)
class Choice:
    """A compiler, and why it isn't the one that was asked for ('' when it is)."""

    compiler: Compiler
    note: str = ""


@lru_cache(maxsize=1)
def host() -> tuple[Compiler, ...]:
    """g++ and clang++ on the PATH, one of each at most, the unversioned command first."""
    found = []
    for name, commands in _NAMES.items():
        for command in commands:
            path = shutil.which(command)
            if path and (version := _version(path)):
                found.append(Compiler(path, name, version))
                break
    return tuple(found)


def choose(target: Target, family: str | None, given: Compiler | None = None) -> Choice:
    """The compiler: ``given``, else the target's of ``family`` ("gcc", "clang"), else its first.

    A target that names none, or none that exists here, is built for with this machine's. Raises KforgeError when this
    machine has none either.
    """
    if given is not None:
        return Choice(given)
    present: Sequence[Compiler] = [c for c in target.compilers if shutil.which(c.path)] or host()
    if not present:
        raise KforgeError("no C++ compiler found: install g++ (12 or newer) or clang++ (14 or newer)")
    if family is None:
        return Choice(present[0])
    for compiler in present:
        if FAMILIES.get(compiler.name) == family:
            return Choice(compiler)
    return Choice(present[0], f"there is no {family} here: built with {present[0].name} {present[0].version}")


def _version(path: str) -> str:
    try:
        done = subprocess.run([path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, timeout=20,
                              check=False)
        if done.returncode:
            done = subprocess.run([path, "-dumpversion"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+(\.\d+)*", done.stdout)
    return found.group(0) if found and not done.returncode else ""
