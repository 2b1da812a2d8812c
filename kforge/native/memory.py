"""Huge-page memory as numpy arrays."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np

from kforge.core.errors import KforgeError
from kforge.native.library import library

ALIGNMENT = 64
PAGE = 4096


def huge_array(size: int) -> np.ndarray:
    """Zeroed u8[size], 2 MiB aligned, in huge pages where the system has them; unmapped with its last view.

    Raises KforgeError when there is no memory.
    """
    native = library()
    size = max(size, 1)
    address = native.kf_map_huge(size)
    if not address:
        raise KforgeError(f"cannot get {size / 2**20:.0f} MiB of memory: use a smaller model or context")
    buffer = (ctypes.c_uint8 * size).from_address(address)
    # Every numpy view keeps `buffer` alive, and the memory lives as long as it does.
    weakref.finalize(buffer, native.kf_unmap_huge, address, size).atexit = False
    return np.frombuffer(memoryview(buffer), dtype=np.uint8)


class Arena:
    """One block of huge-page memory that arrays are taken from, one after another. Arrays outlive the arena."""

    def __init__(self, size: int) -> None:
        self._memory = huge_array(size)
        self._used = 0

    @property
    def bytes(self) -> int:
        return self._memory.size

    @property
    def used(self) -> int:
        return self._used

    @property
    def memory(self) -> np.ndarray:
        """All of it, u8[bytes]."""
        return self._memory

    def take(self, shape: int | tuple[int, ...], dtype: Any, page_aligned: bool = False) -> np.ndarray:
        """The next array, zeroed, 64-byte (or page) aligned. Raises KforgeError when the arena is full."""
        kind = np.dtype(dtype)
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        alignment = PAGE if page_aligned else ALIGNMENT
        start = -(-self._used // alignment) * alignment
        end = start + count * kind.itemsize
        if end > self._memory.size:
            raise KforgeError(f"arena of {self._memory.size} bytes is full: {self._used} used, {end - start} wanted")
        self._used = end
        return self._memory[start:end].view(kind).reshape(shape)
