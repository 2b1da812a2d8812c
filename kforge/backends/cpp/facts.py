"""What the disassembly of a kernel says of it, whatever the architecture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CodeFacts:
    """What a compiler report says of the code: bytes, vector spills, instruction mix (class, count; largest first)."""

    text_bytes: int
    spills: int
    mix: tuple[tuple[str, int], ...]
