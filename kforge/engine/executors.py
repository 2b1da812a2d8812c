"""Where programs of kernels run: in this process, or isolated (``kforge.engine.isolation``); the same to a runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from kforge.core.image import Image
from kforge.engine.kernel_set import ChosenKernel
from kforge.native import Arena, Kernel, Program, Team


class LaunchList(Protocol):
    """A program: launches that one call replays. Arrays are kept, and read again at every replay."""

    def add(self, kernel: ChosenKernel, tensors: Sequence[np.ndarray], axes: np.ndarray, scalars: np.ndarray,
            label: str, max_axes: np.ndarray) -> None: ...

    def reserve(self) -> None:
        """Makes ready for a replay at the axes that stand now: all that can fail before it is run fails here."""

    def run(self) -> None: ...

    def profile(self, replays: int) -> list[float]:
        """Median seconds of each launch, its closing barrier included."""

    @property
    def calls(self) -> tuple[int, ...]:
        """How often each launch has run."""

    def close(self) -> None: ...


class Executor(Protocol):
    """Threads that run programs. ``shared``: what programs touch must lie in arenas that ``share`` was told of."""

    shared: bool

    def share(self, arena: Arena, writable: bool) -> None: ...

    def program(self) -> LaunchList: ...

    def close(self) -> None: ...


class LocalExecutor:
    """A team of this process. Raises KforgeError when its threads cannot be started."""

    shared = False

    def __init__(self, threads: int) -> None:
        self.team = Team(threads)
        self._loaded: dict[str, Kernel] = {}

    def share(self, arena: Arena, writable: bool) -> None:
        """Nothing to do: kernels see all of this process."""

    def program(self) -> LaunchList:
        return _LocalProgram(self)

    def load(self, kernel: ChosenKernel) -> Kernel:
        if kernel.candidate_hash not in self._loaded:
            assert isinstance(kernel.image, Image)  # kernels of other languages run isolated only
            self._loaded[kernel.candidate_hash] = Kernel(kernel.image)
        return self._loaded[kernel.candidate_hash]

    def close(self) -> None:
        self.team.close()


class _LocalProgram:
    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor
        self._program = Program(executor.team)
        self.run = self._program.run
        self.reserve = self._program.reserve
        self.profile = self._program.profile
        self.close = self._program.close

    def add(self, kernel: ChosenKernel, tensors: Sequence[np.ndarray], axes: np.ndarray, scalars: np.ndarray,
            label: str, max_axes: np.ndarray) -> None:
        self._program.add(self._executor.load(kernel), tensors, axes, scalars, label, max_axes=max_axes)

    @property
    def calls(self) -> tuple[int, ...]:
        return self._program.calls
