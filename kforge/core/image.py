"""An admitted kernel image: what the trusted loader needs, and nothing of the ELF file that it came from.

``kforge.backends.cpp.admission`` makes it; ``kforge.native`` (in the engine) and the harness's runner map it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

MAGIC = b"KFIMAGE1"
PAGE = 4096


class Loadable(Protocol):
    """What the runner of a kernel's backend loads."""

    def blob(self) -> bytes: ...


@dataclass(frozen=True)
class Segment:
    """Bytes at ``address`` (page aligned, relative to the image's base), mapped r-x when ``executable``, else r--."""

    address: int
    data: bytes
    memory_bytes: int  # >= len(data); the rest is zero
    executable: bool


@dataclass(frozen=True)
class Relocation:
    """The 64-bit word at ``address`` becomes base + ``addend`` (R_X86_64_RELATIVE, R_AARCH64_RELATIVE)."""

    address: int
    addend: int


@dataclass(frozen=True)
class Image:
    """Position-independent code and constants of one kernel. ``scratch_entry`` is -1 when it needs no scratch."""

    entry: int
    scratch_entry: int
    segments: tuple[Segment, ...]
    relocations: tuple[Relocation, ...]

    @property
    def memory_bytes(self) -> int:
        """Bytes of address space, a multiple of the page size."""
        end = max(s.address + s.memory_bytes for s in self.segments)
        return -(-end // PAGE) * PAGE

    def blob(self) -> bytes:
        """Flat form for the native loader, little endian.

        ``MAGIC``; i64 memory_bytes, entry, scratch_entry, segment count, relocation count; per segment i64 address,
        data bytes, memory bytes, executable; per relocation i64 address, addend; then the segments' data in order.
        """
        parts = [
            MAGIC,
            struct.pack(
                "<5q", self.memory_bytes, self.entry, self.scratch_entry, len(self.segments), len(self.relocations)
            ),
        ]
        parts += [struct.pack("<4q", s.address, len(s.data), s.memory_bytes, int(s.executable)) for s in self.segments]
        parts += [struct.pack("<2q", r.address, r.addend) for r in self.relocations]
        parts += [s.data for s in self.segments]
        return b"".join(parts)
