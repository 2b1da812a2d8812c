"""Calls of one candidate that need no timed inputs: a process with slots, made when it is first needed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from kforge.core.image import Image
from kforge.core.trial import Failure
from kforge.core.workload import Workload
from kforge.harness.forms import Form
from kforge.harness.process import SCRATCH, SCRATCH_LIMIT, Process
from kforge.harness.proof import proven, require
from kforge.harness.slots import SlotFile, SlotRequest
from kforge.harness.zygote import Child, Zygote
from kforge.operators import get
from kforge.operators.base import Role

CPU_SECONDS = 3600  # of a process, however many calls it serves


class Running:
    """A candidate's process with its slots; ``held`` is what it takes along when it is closed."""

    def __init__(self, child: Child, slots: SlotFile, reserve_address: int, held: ExitStack) -> None:
        self.child, self.slots, self.reserve_address = child, slots, reserve_address
        self._held = held

    def close(self) -> None:
        self._held.close()


class SlotCaller(ABC):
    """One candidate, called in a process that ``start`` makes; anew for larger tensors or after a failure. See
    ``kforge.backends.verbs.StandIn``."""

    where: str
    slower = 1.0  # how many times longer a call may take than on a processor of this machine

    def __init__(self, image: Image, operator: str, threads: int = 2) -> None:
        self._image, self._operator, self._threads = image, get(operator), threads
        self._sizes: dict[str, SlotRequest] = {}
        self._running: Running | None = None

    @abstractmethod
    def start(self, slots: SlotFile, held: ExitStack) -> Running | Failure:
        """A process with these slots; ``held`` closes them."""

    def run_once(self, workload: Workload, inputs: Mapping[str, np.ndarray], threads: int, poison: int, fence: int,
                 strided: bool, seconds: float, late: int | None = None) -> dict[str, np.ndarray] | Failure:
        """As ``kforge.harness.process.Process.run_once``; at most as many threads as it was made with."""
        if self._grow(workload) or self._running is None:
            self.close()
            started = self._started()
            if isinstance(started, Failure):
                return started
            self._running = started
        process = Process(self._running.child, self._running.slots, self._operator, self._running.reserve_address)
        found = process.run_once(workload, inputs, threads, poison, fence, strided, seconds * self.slower, late)
        if isinstance(found, Failure):
            self.close()  # its process may be gone
        return found

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _started(self) -> Running | Failure:
        with ExitStack() as held:
            slots = SlotFile([*self._sizes.values(), SlotRequest(SCRATCH, SCRATCH_LIMIT, True)], self._threads)
            held.callback(slots.close)
            found = self.start(slots, held)
            if not isinstance(found, Failure):
                found = Running(found.child, slots, found.reserve_address, held.pop_all())
            return found

    def _grow(self, workload: Workload) -> bool:
        """Whether the slots are too small for a workload's tensors; makes room."""
        grown = False
        for spec in self._operator.tensors(workload):
            size = max(spec.bytes, Form.of(spec, strided=True).bytes)
            if spec.name not in self._sizes or size > self._sizes[spec.name].size:
                self._sizes[spec.name] = SlotRequest(spec.name, size, spec.role is not Role.IN)
                grown = True
        return grown


class HostCaller(SlotCaller):
    """On this machine's processor, locked down as for any candidate: for a target whose instructions it has."""

    where = "host"

    def start(self, slots: SlotFile, held: ExitStack) -> Running | Failure:
        confinement = proven()
        require(confinement, trust_candidates=False)
        zygote = held.enter_context(Zygote.empty(slots.reserve_bytes))
        cpus = sorted(os.sched_getaffinity(0))[: self._threads]
        child = zygote.spawn(self._image, slots, cpus, CPU_SECONDS, confinement.run.needed)
        if isinstance(child, Failure):
            return child
        held.callback(child.close)
        return Running(child, slots, zygote.reserve_address, held)
