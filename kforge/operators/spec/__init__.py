"""Order specifications: scalar C++ that fixes every order and every rounding (docs/architecture.md)."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from kforge.native.build import build_library

if TYPE_CHECKING:
    import numpy as np


@functools.cache
def _library() -> ctypes.CDLL:
    here = Path(__file__).parent
    # The lanes that a specification runs over innermost are vectorised, which keeps each element's order.
    return ctypes.CDLL(str(build_library("kforge_spec", sorted(here.glob("*.cc")), ("-O3", "-march=native"))))


def call(name: str, *arguments: int | float | np.ndarray | None) -> None:
    """Run ``kf_spec_<name>``; arrays are passed as pointers, integers as int64, None as null.

    Raises KforgeError when there is no C++ compiler.
    """
    converted: list[ctypes.c_int64 | ctypes.c_double | ctypes.c_void_p] = []
    for argument in arguments:
        if argument is None:
            converted.append(ctypes.c_void_p(None))
        elif isinstance(argument, int):
            converted.append(ctypes.c_int64(argument))
        elif isinstance(argument, float):
            converted.append(ctypes.c_double(argument))
        else:
            if not argument.flags.c_contiguous:
                raise ValueError(f"{name}: the order specification takes contiguous arrays only")
            converted.append(ctypes.c_void_p(argument.ctypes.data))
    getattr(_library(), f"kf_spec_{name}")(*converted)
