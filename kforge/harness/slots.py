"""Where a child's tensors lie: one file of shared memory, mapped between guard pages, fenced and poisoned.

Every tensor and the scratch has a *slot*. In the child, slots lie in one reserved range with an inaccessible page on
both sides; inputs are mapped read-only. In a check a tensor ends where its slot ends (up to 64-byte alignment), so
that the first read or write beyond it faults; in front of it lies a fence, a known pattern that is looked at
afterwards.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kforge.harness.control import SharedMemory

PAGE = mmap.PAGESIZE
ALIGN = 64
STACK_BYTES = 64 << 10  # of each thread of a candidate (protocol.h)
CHILDREN = 2  # that live at a time: a candidate and its incumbent
_FENCE_BYTES = 1 << 18  # looked at in front of a tensor; beyond that it would cost more than it finds


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Slot:
    name: str
    address_offset: int  # from the start of the reserved range
    file_offset: int
    size: int  # a multiple of the page size, one page larger than the largest tensor
    writable: bool


@dataclass(frozen=True)
class SlotRequest:
    name: str
    size: int
    writable: bool


@dataclass(frozen=True)
class Place:
    """``size`` bytes in ``slot`` from ``start`` (bytes from the slot's start), behind a fence of at most ``fence``."""

    slot: Slot
    start: int
    size: int
    fence: int = _FENCE_BYTES

    @property
    def address_offset(self) -> int:
        return self.slot.address_offset + self.start


class SlotFile:
    """The memory file of slots that children share, and of stacks for ``CHILDREN`` at a time, each with its own; and
    this process's view of it.

    A stack holds return addresses and what a launch points to: a child that could write to another's while that runs
    could make it slow, or run as it.
    """

    def __init__(self, requests: Sequence[SlotRequest], threads: int, memory: SharedMemory | None = None) -> None:
        """In ``memory``, which must be large enough and stays its owner's, else in memory of its own."""
        slots = []
        address, offset = PAGE, 0
        for request in requests:
            size = round_up(request.size, PAGE) + PAGE
            slots.append(Slot(request.name, address, offset, size, request.writable))
            address += size + PAGE
            offset += size
        self.slots = tuple(slots)
        self.reserve_bytes = address
        self._stacks = threads * STACK_BYTES
        self._stacks_offset = offset
        self._borrowed = memory is not None
        self.memory = memory or SharedMemory("kforge-slots", offset + CHILDREN * self._stacks)
        self._bytes = np.frombuffer(self.memory.map, dtype=np.uint8)
        self._by_name = {slot.name: slot for slot in self.slots}

    def place_at_end(self, name: str, size: int) -> Place:
        """For checks: an overrun of more than alignment faults."""
        slot = self._by_name[name]
        return Place(slot, slot.size - round_up(size, ALIGN), size)

    def place_at_page(self, name: str, size: int) -> Place:
        """For timing: page aligned, as large buffers are in the engine; a page of fence in front."""
        return Place(self._by_name[name], PAGE, size)

    def view(self, place: Place) -> np.ndarray:
        """The tensor's bytes, shared with the child."""
        start = place.slot.file_offset + place.start
        return self._bytes[start : start + place.size]

    def stacks_offset(self, child: int) -> int:
        """Where the stacks of a child lie in the file; of children that live together no two numbers are a multiple of
        ``CHILDREN`` apart.
        """
        return self._stacks_offset + child % CHILDREN * self._stacks

    def wipe_stacks(self, child: int) -> None:
        """What a command left below its frames is gone for the next."""
        start = self.stacks_offset(child)
        self._bytes[start : start + self._stacks] = 0

    def fence(self, place: Place, pattern: int) -> None:
        """Fills what lies around the tensor in its slot."""
        for part in self._around(place):
            part[:] = pattern

    def broken_fence(self, place: Place, pattern: int) -> int | None:
        """Offset in bytes from the tensor's start of the first fence byte that changed (negative: in front of it)."""
        before, after = self._around(place)
        if before.size and (changed := np.flatnonzero(before != pattern)).size:
            return int(changed[-1]) - before.size
        if after.size and (changed := np.flatnonzero(after != pattern)).size:
            return place.size + int(changed[0])
        return None

    def _around(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        first = place.slot.file_offset
        start = first + place.start
        end = start + place.size
        # What lies after it in the slot is at most alignment (end-placed), or up to the next page (page-placed).
        after = min(first + place.slot.size, round_up(end, PAGE))
        return self._bytes[max(first, start - place.fence) : start], self._bytes[end:after]

    def close(self) -> None:
        del self._bytes
        if not self._borrowed:
            self.memory.close()
