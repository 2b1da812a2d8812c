"""C++ probes of the shipped headers, compiled by kforge's own build and opened."""

import ctypes
import functools
from pathlib import Path

import numpy as np

from kforge.native import build_library


@functools.cache
def cpu_features() -> frozenset[str]:
    text = Path("/proc/cpuinfo").read_text()
    return frozenset(next((line.split(":")[1] for line in text.splitlines() if line.startswith("flags")), "").split())


@functools.cache
def open_probe(name: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The library of ``<name>.cc`` in this folder, compiled with an instruction set of its own."""
    return ctypes.CDLL(str(build_library(f"test_{name}", [Path(__file__).with_name(f"{name}.cc")], flags)))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
