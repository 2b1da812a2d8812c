"""What the disassembly of a kernel says of it, and what holds of its code, whatever the architecture."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from kforge.backends.cpp.elf import Refused
from kforge.core.image import Segment


@dataclass(frozen=True)
class CodeFacts:
    """What a compiler report says of the code: bytes, vector spills, instruction mix (class, count; largest first)."""

    text_bytes: int
    spills: int
    mix: tuple[tuple[str, int], ...]


def require_landing(starts: Container[int], targets: Mapping[int, int], entries: tuple[int, ...]) -> None:
    """Branches (``targets``: where to -> from where) and entry points land on what was decoded. Raises Refused."""
    for target, origin in targets.items():
        if target not in starts:
            raise Refused(f"the branch at {origin:#x} does not land on an instruction of the image")
    for entry in entries:
        if entry not in starts:
            raise Refused(f"the entry point {entry:#x} is not the start of an instruction")


def gates_in(segment: Segment, gate: bytes) -> dict[int, str]:
    """Addresses of the instructions of each barrier gate, three of four bytes; a gate starts at a multiple of 16."""
    found: dict[int, str] = {}
    at = segment.data.find(gate)
    while at >= 0:
        if (segment.address + at) % 16 == 0:
            found[segment.address + at] = "start"
            found[segment.address + at + 4] = found[segment.address + at + 8] = "inside"
        at = segment.data.find(gate, at + 1)
    return found
