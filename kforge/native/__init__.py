"""The SPMD executor: a team of pinned threads, loaded kernels and programs of launches.

Its C++ is compiled with the system's compiler on first use (never on import) and shared with the harness's runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge.native.build import build_library, build_program, executor_sources, include_dir, source_dir
from kforge.native.compilers import default_compiler, find_compilers
from kforge.native.team import Team

if TYPE_CHECKING:
    from kforge.native.memory import Arena, huge_array
    from kforge.native.program import Kernel, Program

__all__ = ["Arena", "Kernel", "Program", "Team", "build_library", "build_program", "default_compiler",
           "executor_sources", "find_compilers", "huge_array", "include_dir", "source_dir"]


def __getattr__(name: str) -> object:
    """The parts that need numpy, imported when asked for: the look-up path must start without it."""
    from importlib import import_module

    for module in ("kforge.native.memory", "kforge.native.program"):
        if name in __all__ and hasattr(found := import_module(module), name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
