"""Admission: a gate that decides whether an artifact is pure computation, before it is loaded anywhere.

In the harness before a candidate is timed, and again whenever the engine loads a kernel.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache

from kforge.backends.cpp import code, code_aarch64, elf
from kforge.backends.cpp.elf import Refused
from kforge.backends.cpp.facts import CodeFacts
from kforge.core.image import Image
from kforge.core.trial import Failure, FailureClass


@dataclass(frozen=True)
class Admitted:
    """An admitted image, and what its disassembly says."""

    image: Image
    facts: CodeFacts


def admit(data: bytes, machine: str = "") -> Image | Failure:
    """The image that the trusted loader maps, or a failure of class ADMISSION. ``machine``: what it must be for; ""
    stands for this one."""
    found = examine(data, machine)
    return found if isinstance(found, Failure) else found.image


@lru_cache(maxsize=64)
def examine(data: bytes, machine: str = "") -> Admitted | Failure:
    """As ``admit``, with the facts of the disassembly for a compiler report."""
    wanted = machine or platform.machine()
    try:
        layout = elf.read(data)
        if layout.machine != wanted:
            raise Refused(f"it is for {layout.machine}, not {wanted}")
        entries = (layout.entry, *([layout.scratch_entry] if layout.scratch_entry >= 0 else []))
        sweep = code_aarch64.sweep if layout.machine == "aarch64" else code.sweep
        facts = sweep(layout.segments, entries)
    except Refused as refused:
        return Failure(FailureClass.ADMISSION, f"not admitted: {refused}")
    return Admitted(Image(layout.entry, layout.scratch_entry, layout.segments, layout.relocations), facts)
