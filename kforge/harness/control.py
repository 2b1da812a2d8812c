"""The page that a child and its parent share: the command, and what came of it (``protocol.h``)."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from enum import IntEnum

SURVIVED_EXIT, LOAD_EXIT, FAULT_EXIT = 96, 97, 99  # exit statuses of a child (child.h)
MAX_TENSORS, MAX_RANK, MAX_AXES, MAX_SCALARS = 16, 8, 8, 8


class State(IntEnum):
    STARTING = 0
    READY = 1
    DEAD = 2


class Command(IntEnum):
    RUN = 1
    SCRATCH = 2
    TOUCH = 3


class Fault(IntEnum):
    """Where a fault was: anywhere, in an input, in a guard page beside an output, an input or the scratch, or below the
    stack.
    """

    NONE = 0
    PLAIN = 1
    INPUT = 2
    GUARD = 3
    STACK = 4


class TensorCommand(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("copies", ctypes.c_int64),
        ("copy_stride", ctypes.c_int64),
        ("spoil_bytes", ctypes.c_int64),
        ("strides", ctypes.c_int64 * MAX_RANK),
    )


class ControlPage(ctypes.Structure):
    _fields_ = (
        ("posted", ctypes.c_uint32), ("_0", ctypes.c_byte * 60),
        ("done", ctypes.c_uint32), ("_1", ctypes.c_byte * 60),
        ("state", ctypes.c_uint32),
        ("fault", ctypes.c_int32),
        ("signal", ctypes.c_int32),
        ("fault_address", ctypes.c_uint64),
        ("message", ctypes.c_char * 128), ("_2", ctypes.c_byte * 40),
        ("command", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("tensors", ctypes.c_int32),
        ("seed", ctypes.c_uint32),
        ("calls", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("scratch", ctypes.c_uint64),
        ("scratch_bytes", ctypes.c_int64),
        ("scratch_stride", ctypes.c_int64),
        ("result", ctypes.c_int64),
        ("axes", ctypes.c_int64 * MAX_AXES),
        ("scalars", ctypes.c_double * MAX_SCALARS),
        ("tensor", TensorCommand * MAX_TENSORS),
        ("staggered", ctypes.c_int32),
        ("late", ctypes.c_int32),
        ("step", ctypes.c_int64),
    )


class SharedMemory:
    """An anonymous memory file with a mapping in this process; gone when closed, whatever becomes of the process."""

    def __init__(self, name: str, size: int, sealable: bool = False) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0))
        try:
            os.ftruncate(self.fd, size)
            self.map = mmap.mmap(self.fd, size)
        except OSError:
            os.close(self.fd)
            raise
        self.size = size

    def discard(self, used: int) -> None:
        """Its first ``used`` bytes are zeros again, and take no memory."""
        if used:
            self.map.madvise(mmap.MADV_REMOVE, 0, -(-used // mmap.PAGESIZE) * mmap.PAGESIZE)

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # an array still looks at it; the mapping goes when that does
            self.map.close()
        os.close(self.fd)
