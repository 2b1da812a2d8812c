"""Which compiler builds a candidate, and what of the file system it needs to read."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.target import Compiler, Target
from kforge.native.compilers import default_compiler, find_compilers, find_cross

FAMILIES = {"g++": "gcc", "clang++": "clang"}


@dataclass(frozen=True)
class Choice:
    """A compiler, and why it isn't the one that was asked for ('' when it is)."""

    compiler: Compiler
    note: str = ""


def choose(target: Target, family: str | None, given: Compiler | None = None) -> Choice:
    """The compiler: ``given``, else the target's of ``family`` ("gcc", "clang"), else its first.

    A target that names none, or none that exists here, is built for with this machine's; one of another architecture
    with a cross compiler. Raises KforgeError when this machine has none either.
    """
    if given is not None:
        return Choice(given)
    present: Sequence[Compiler] = [c for c in target.compilers if shutil.which(c.path)]
    if target.arch != platform.machine():
        present = find_cross(target.arch)
        if not present:
            raise KforgeError(missing_cross(target))
    present = present or find_compilers()
    if family is None or not present:
        return Choice(present[0] if present else default_compiler())
    for compiler in present:
        if FAMILIES.get(compiler.name) == family:
            return Choice(compiler)
    return Choice(present[0], f"there is no {family} here: built with {present[0].name} {present[0].version}")


def missing_cross(target: Target) -> str:
    """Why nothing can be built for a target of another architecture, and what to install; "" where it can be."""
    if find_cross(target.arch):
        return ""
    return (f"no compiler for {target.arch} is installed: install g++-{target.arch}-linux-gnu (Debian, Ubuntu), which "
            f"brings {target.arch}-linux-gnu-g++ >= 12")


def toolchain(compiler: Compiler) -> tuple[str, ...]:
    """Folders outside the system's that the compiler must read: its installation prefix, when it looks like one."""
    real = Path(compiler.path).resolve()
    if real.is_relative_to("/usr"):
        return ()
    prefix = real.parent.parent
    whole = any((prefix / part).is_dir() for part in ("lib/gcc", "lib/clang", "libexec/gcc", "lib64/gcc"))
    # A home folder is no prefix, even with a compiler in its bin: secrets live there.
    return (str(prefix if whole and prefix != Path.home() else real.parent),)
