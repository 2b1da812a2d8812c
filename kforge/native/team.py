"""A team of pinned threads."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from kforge.core.errors import KforgeError
from kforge.native.library import ErrorText, library

if TYPE_CHECKING:
    import numpy as np

_forks = itertools.count(1)
_generation = 0


def _after_fork() -> None:
    global _generation  # noqa: PLW0603  (the process's own state)
    _generation = next(_forks)


os.register_at_fork(after_in_child=_after_fork)


def _delete(handle: int, generation: int) -> None:
    if generation == _generation:  # threads do not survive a fork, so there is nobody to join in a child
        library().kf_team_delete(handle)


class Team:
    """``threads`` threads, the caller being thread 0; each pinned to a core while a program runs.

    ``cores`` names a CPU per thread; by default those that the process may use, one per physical core first. With more
    threads than CPUs it still works, without spinning. Not usable in a forked child. Close it, or let it be collected.
    """

    def __init__(self, threads: int, cores: Sequence[int] | None = None) -> None:
        if threads < 1:
            raise KforgeError(f"a team needs at least one thread, not {threads}")
        if cores is not None and len(cores) != threads:
            raise KforgeError(f"{threads} threads need {threads} cores, not {len(cores)}")
        native = library()
        chosen = (ctypes.c_int32 * threads)(*cores) if cores is not None else None
        error = ErrorText()
        handle = native.kf_team_new(threads, chosen, error.buffer, error.size)
        if not handle:
            raise KforgeError(f"cannot start {threads} threads: {error}")
        self.threads = threads
        self._handle = handle
        self._generation = _generation
        self._scratch: np.ndarray | None = None
        self._finalizer = weakref.finalize(self, _delete, handle, _generation)

    @property
    def handle(self) -> int:
        """The native team. Raises KforgeError when it was closed or this process is a fork of its owner."""
        if not self._finalizer.alive:
            raise KforgeError("the team was closed")
        if self._generation != _generation:
            raise KforgeError("a team does not survive a fork: make a new one in the child")
        return self._handle

    @property
    def cores(self) -> tuple[int, ...]:
        return tuple(library().kf_team_core(self.handle, t) for t in range(self.threads))

    @property
    def scratch(self) -> np.ndarray | None:
        """Memory that every launch of every program on this team shares, one launch at a time."""
        return self._scratch

    def need_scratch(self, size: int) -> None:
        """Makes ``scratch`` at least that large; programs notice when it moves."""
        from kforge.native.memory import huge_array

        if self._scratch is None or self._scratch.size < size:
            self._scratch = huge_array(size)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Keeps the calling thread on the team's first core. A replay pins it anyway and puts it back, which takes
        longer than a small launch; inside this scope that is saved.
        """
        native = library()
        scope = native.kf_team_pin(self.handle)
        try:
            yield
        finally:
            native.kf_unpin(scope)

    def park(self) -> None:
        """Returns when every worker sleeps; they spin for 100 us after a run otherwise."""
        library().kf_team_park(self.handle)

    def barrier_seconds(self, rounds: int = 10000) -> float:
        """Measured cost of one barrier of the whole team."""
        return library().kf_team_time_barriers(self.handle, rounds) / rounds * 1e-9

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
