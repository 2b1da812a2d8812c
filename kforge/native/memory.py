"""Huge-page memory as numpy arrays."""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from typing import Any

import numpy as np

from kforge.core.errors import KforgeError
from kforge.native.library import library

ALIGNMENT = 64
PAGE = 4096
_HUGE_PAGE = 2 << 20


def huge_array(size: int, file: int | None = None) -> np.ndarray:
    """Zeroed u8[size], 2 MiB aligned, in huge pages where the system has them; unmapped with its last view.

    Of a new memory file where one is given, for other processes to map too. Raises KforgeError when there is no memory.
    """
    native = library()
    size = max(size, 1)
    address = native.kf_map_huge(size) if file is None else native.kf_map_shared(file, size)
    if not address:
        raise KforgeError(f"cannot get {size / 2**20:.0f} MiB of memory: use a smaller model or context")
    buffer = (ctypes.c_uint8 * size).from_address(address)
    # Every numpy view keeps `buffer` alive, and the memory lives as long as it does.
    weakref.finalize(buffer, native.kf_unmap_huge, address, size).atexit = False
    return np.frombuffer(memoryview(buffer), dtype=np.uint8)


def _whole(size: int) -> int:
    return -(-size // _HUGE_PAGE) * _HUGE_PAGE


class Arena:
    """One block of huge-page memory that arrays are taken from, one after another. Arrays outlive the arena.

    A ``shared`` one lies in a memory file, ``file``, which the arena closes with itself, and is committed at once.
    """

    def __init__(self, size: int, shared: bool = False) -> None:
        self.file: int | None = None
        if shared:
            self.file = os.memfd_create("kforge-arena")
            weakref.finalize(self, os.close, self.file)
            try:
                os.ftruncate(self.file, max(_whole(size), 1))
            except OSError as error:
                raise KforgeError(f"cannot get {size / 2**20:.0f} MiB of shared memory: {error.strerror}") from error
        self._memory = huge_array(size, self.file)
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
