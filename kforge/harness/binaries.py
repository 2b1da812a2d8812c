"""The native parts of the harness, built on first use: the runner and what keeps processors awake (programs), and the
parent's clock (a library).
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from kforge.backends.opencl.programs import HERE as OPENCL
from kforge.core.errors import KforgeError
from kforge.native.build import build_library, build_program, executor_sources, source_dir
from kforge.native.compilers import find_cross

_HERE = Path(__file__).resolve().parent


@functools.cache
def runner() -> Path:
    """Path of ``kforge-runner``. Raises KforgeError when there is no compiler."""
    return build_program("kforge-runner", [_HERE / "runner.cc", *executor_sources()], include_dirs=[source_dir()])


@functools.cache
def emulated_child(arch: str) -> Path:
    """Path of ``kforge-child``, one candidate's process without a zygote, for an emulator of ``arch``: linked with all
    that it needs. Raises KforgeError when there is no cross compiler with a C++ library.
    """
    compiler = next((c for c in find_cross(arch) if c.name == "g++"), None)
    if compiler is None:
        raise KforgeError(f"no g++ for {arch} is installed: install g++-{arch}-linux-gnu")
    sources = [_HERE / "emulated.cc", *executor_sources()]
    return build_program(f"kforge-child-{arch}", sources, ("-static",), [source_dir()], compiler)


@functools.cache
def opencl_runner() -> Path:
    """Path of ``kforge-opencl-runner``. It takes the place of the C library's dlsym (``gate.h``)."""
    return build_program("kforge-opencl-runner", [_HERE / "opencl_runner.cc"], ["-rdynamic"],
                         include_dirs=[source_dir(), OPENCL, _HERE])


def runner_of(backend: str) -> Path:
    """The program that runs a backend's candidates. Raises KforgeError where there is none."""
    runners = {"cpp": runner, "opencl": opencl_runner}
    if backend not in runners:
        raise KforgeError(f"kernels of backend {backend} cannot be run by the harness")
    return runners[backend]()


@functools.cache
def sleepless() -> Path:
    """Path of ``kforge-awake``."""
    return build_program("kforge-awake", [_HERE / "awake.cc"])


@functools.cache
def clock() -> ctypes.CDLL:
    """``kf_harness_call``, ``kf_harness_bury`` and ``kf_harness_wait_start`` of ``clock.cc``; calls release the
    interpreter's lock.
    """
    library = ctypes.CDLL(str(build_library("kforge_clock", [_HERE / "clock.cc"])))
    library.kf_harness_call.restype = ctypes.c_int64
    library.kf_harness_call.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64]
    library.kf_harness_bury.restype = None
    library.kf_harness_bury.argtypes = [ctypes.c_void_p]
    library.kf_harness_wait_start.restype = ctypes.c_int32
    library.kf_harness_wait_start.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    return library
