"""The executor's C functions, compiled and opened on first use."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p

from kforge.native.build import build_library, executor_sources, source_dir

_SIGNATURES = {
    "kf_team_new": (c_void_p, [c_int32, POINTER(c_int32), c_char_p, c_int64]),
    "kf_team_delete": (None, [c_void_p]),
    "kf_team_park": (None, [c_void_p]),
    "kf_team_pin": (c_void_p, [c_void_p]),
    "kf_unpin": (None, [c_void_p]),
    "kf_team_core": (c_int32, [c_void_p, c_int32]),
    "kf_team_time_barriers": (c_int64, [c_void_p, c_int64]),
    "kf_kernel_load": (c_void_p, [c_char_p, c_int64, c_char_p, c_int64]),
    "kf_kernel_delete": (None, [c_void_p]),
    "kf_kernel_scratch_bytes": (c_int64, [c_void_p, POINTER(c_int64), c_int32]),
    "kf_kernel_base": (c_void_p, [c_void_p]),
    "kf_kernel_bytes": (c_int64, [c_void_p]),
    "kf_program_new": (c_void_p, [c_void_p]),
    "kf_program_delete": (None, [c_void_p]),
    "kf_program_add": (c_int64, [c_void_p, c_void_p, c_int64, POINTER(c_void_p), POINTER(c_int64), POINTER(c_int64),
                                 POINTER(c_int64), POINTER(c_double)]),
    "kf_program_set_scratch": (None, [c_void_p, c_int64, c_void_p, c_int64]),
    "kf_program_run": (c_int64, [c_void_p]),
    "kf_program_profile": (c_int64, [c_void_p, c_int64, POINTER(c_int64)]),
    "kf_program_calls": (c_int64, [c_void_p, c_int64]),
    "kf_map_huge": (c_void_p, [c_int64]),
    "kf_map_shared": (c_void_p, [c_int32, c_int64]),
    "kf_unmap_huge": (None, [c_void_p, c_int64]),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Calls release the interpreter's lock. Raises KforgeError when there is no compiler."""
    path = build_library("kforge_native", [*executor_sources(), source_dir() / "capi.cc"])
    opened = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(opened, name)
        function.restype = result
        function.argtypes = arguments
    return opened


class ErrorText:
    """A buffer that a C function writes one sentence into."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(256)

    @property
    def size(self) -> int:
        return len(self.buffer)

    def __str__(self) -> str:
        return self.buffer.value.decode(errors="replace")
