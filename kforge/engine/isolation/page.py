"""The page that the engine and its isolated executor share (``page.h``)."""

from __future__ import annotations

import ctypes
from enum import IntEnum

PAGE_BYTES = 1 << 16
MAX_LAUNCHES = 8000


class Command(IntEnum):
    RUN = 1
    PROFILE = 2


class Page(ctypes.Structure):
    _fields_ = (
        ("posted", ctypes.c_uint32), ("_0", ctypes.c_byte * 60),
        ("done", ctypes.c_uint32), ("_1", ctypes.c_byte * 60),
        ("state", ctypes.c_uint32),
        ("signal", ctypes.c_int32),
        ("address", ctypes.c_uint64),
        ("launch", ctypes.c_int64),
        ("message", ctypes.c_char * 128), ("_2", ctypes.c_byte * 40),
        ("command", ctypes.c_int32),
        ("program", ctypes.c_int32),
        ("core", ctypes.c_int32),
        ("_3", ctypes.c_int32),
        ("result", ctypes.c_int64),
        ("nanoseconds", ctypes.c_int64 * MAX_LAUNCHES),
    )
