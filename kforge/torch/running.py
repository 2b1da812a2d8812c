"""Kernels on a team of threads that all operators of the process share."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kforge.core.image import Image
from kforge.native import Kernel, Program, Team


@dataclass
class Workers:
    """A team of threads and the kernels that it has mapped. One launch at a time. A forked child starts its own."""

    threads: int
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _team: Team | None = None
    _process: int = 0
    _kernels: dict[str, Kernel] = field(default_factory=dict)

    def launch(
        self, image: Image, key: str, tensors: Sequence[np.ndarray], axes: Sequence[int], scalars: Sequence[float]
    ) -> None:
        """``key`` names the image. Tensors are as the ABI wants them (``tensors.placed``)."""
        with self._lock:
            team = self._own_team()
            if key not in self._kernels:
                self._kernels[key] = Kernel(image)
            with Program(team) as program:
                program.add(self._kernels[key], tensors, np.array(axes, np.int64), np.array(scalars, np.float64), key)
                program.run()

    def _own_team(self) -> Team:
        if self._team is None or self._process != os.getpid():
            self._team, self._process = Team(self.threads), os.getpid()
            self._kernels.clear()
        return self._team


_workers: dict[int, Workers] = {}


def workers(threads: int) -> Workers:
    """Those of so many threads, started once."""
    return _workers.setdefault(threads, Workers(threads))
