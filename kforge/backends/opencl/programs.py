"""kforge's own OpenCL programs, compiled on first use: one that lists devices and builds, one that runs candidates."""

from __future__ import annotations

import functools
from pathlib import Path

from kforge.native.build import build_program

HERE = Path(__file__).resolve().parent


@functools.cache
def tool() -> Path:
    """Path of ``kforge-opencl``. Raises KforgeError when there is no compiler."""
    return build_program("kforge-opencl", [HERE / "tool.cc"])
