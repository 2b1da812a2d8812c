"""Programs that run in a locked-down process, to a runner the same as those of its own process."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kforge.core.errors import KforgeError
from kforge.engine.isolation.page import MAX_LAUNCHES, Command
from kforge.engine.isolation.plan import Place, Plan, PlannedBlock, PlannedLaunch, PlannedTensor
from kforge.engine.isolation.process import Death, IsolatedProcess
from kforge.engine.kernel_set import ChosenKernel
from kforge.harness.process import SCRATCH_LIMIT
from kforge.harness.proof import Layer, proven
from kforge.native import Arena
from kforge.native.program import check_tensor

HANG_SECONDS = 600.0  # of one step: a large prompt on a slow machine takes some tens
_NEEDED = Layer.FILTER | Layer.FILES | Layer.PRIVILEGES | Layer.LIMITS


@dataclass(frozen=True)
class _Block:
    arena: Arena
    writable: bool

    @property
    def range(self) -> range:
        start = self.arena.memory.ctypes.data
        return range(start, start + self.arena.bytes)


class IsolatedExecutor:
    """``threads`` threads in a process that may do nothing but compute. Raises KforgeError where this machine cannot
    lock it down. A step that takes longer than ``HANG_SECONDS`` is given up, and the process with it.

    ``backend``: "opencl" opens the OpenCL device of its kernels beside the threads, and takes native kernels too."""

    shared = True

    def __init__(self, threads: int, backend: str = "cpp") -> None:
        self._backend = backend
        confinement = proven()
        if lost := _NEEDED & ~confinement.run.layers:
            raise KforgeError(f"kernels cannot be isolated here: {lost.name} does not hold (kforge doctor says what to "
                              "do); --no-isolate runs them in the engine's own process, if you would run their "
                              "authors' programs")
        self._threads = threads
        self._needed = confinement.run.needed
        self._blocks: list[_Block] = []
        self._kernels: dict[str, int] = {}
        self._images: list[bytes] = []
        self._programs: list[IsolatedProgram] = []
        self._process: IsolatedProcess | None = None
        self._failure = ""

    def share(self, arena: Arena, writable: bool) -> None:
        if not any(block.arena is arena for block in self._blocks):
            self._blocks.append(_Block(arena, writable))
            self._retire()

    def program(self) -> IsolatedProgram:
        self._programs.append(IsolatedProgram(self, len(self._programs)))
        return self._programs[-1]

    def load(self, kernel: ChosenKernel) -> int:
        """The kernel's index in plans."""
        if kernel.candidate_hash not in self._kernels:
            self._kernels[kernel.candidate_hash] = len(self._images)
            self._images.append(kernel.image.blob())
        return self._kernels[kernel.candidate_hash]

    def place(self, array: np.ndarray, what: str) -> Place:
        """Where an array lies. KforgeError when that is not in shared memory."""
        address = array.ctypes.data
        for index, block in enumerate(self._blocks):
            if address in block.range or (array.size == 0 and address == block.range.stop):
                return Place(index, address - block.range.start)
        raise KforgeError(f"{what} does not lie in memory that is shared with the isolated executor")

    def started(self) -> IsolatedProcess:
        """The process, with all programs as they are now. KforgeError once a kernel has failed."""
        if self._failure:
            raise KforgeError(self._failure)
        if self._process is None:
            programs = tuple(tuple(program.launches) for program in self._programs)
            blocks = tuple(PlannedBlock(block.arena.bytes, block.writable) for block in self._blocks)
            plan = Plan(self._threads, SCRATCH_LIMIT, blocks, tuple(self._images), programs)
            files = [block.arena.file for block in self._blocks if block.arena.file is not None]
            self._process = IsolatedProcess(plan, files, self._needed, self._backend)
        return self._process

    def call(self, command: Command, program: IsolatedProgram) -> IsolatedProcess:
        process = self.started()
        death = process.call(command, program.index, HANG_SECONDS)
        if death is not None:
            self._failure = self._sentence(death)
            self._retire()
            raise KforgeError(self._failure)
        if process.page.result >= 0:
            kernel = program.name_of(int(process.page.result))
            raise KforgeError(f"{kernel} wants more scratch than {SCRATCH_LIMIT >> 20} MiB")
        return process

    def changed(self) -> None:
        """The plan is another one now: the next call starts a process for it."""
        self._retire()

    def close(self) -> None:
        self._failure = self._failure or "the engine was closed"
        self._retire()

    def _sentence(self, death: Death) -> str:
        name = self._programs[death.program].name_of(death.launch)
        return f"kernel process died: {death.reason}, in {name}; the engine itself is unharmed, but must be made anew"

    def _retire(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class IsolatedProgram:
    """See ``kforge.engine.executors.LaunchList``."""

    def __init__(self, executor: IsolatedExecutor, index: int) -> None:
        self.index = index
        self.launches: list[PlannedLaunch] = []
        self._executor = executor
        self._names: list[str] = []
        self._replays = 0

    def add(self, kernel: ChosenKernel, tensors: Sequence[np.ndarray], axes: np.ndarray, scalars: np.ndarray,
            label: str, max_axes: np.ndarray) -> None:
        if len(self.launches) == MAX_LAUNCHES:
            raise KforgeError(f"an isolated program has at most {MAX_LAUNCHES} launches")
        for i, tensor in enumerate(tensors):
            check_tensor(tensor, f"{label}: tensor {i}")
        place = self._executor.place
        planned = tuple(
            PlannedTensor(place(t, f"{label}: tensor {i}"), tuple(s // t.itemsize for s in t.strides))
            for i, t in enumerate(tensors)
        )
        launch = PlannedLaunch(self._executor.load(kernel), place(axes, f"{label}: axes"),
                               place(scalars, f"{label}: scalars"), planned)
        self.launches.append(launch)
        self._names.append(f"kernel {kernel.candidate_hash} ({kernel.template}) called for {label}")
        self._executor.changed()

    def name_of(self, launch: int) -> str:
        return self._names[launch] if 0 <= launch < len(self._names) else "a kernel that is not known"

    def reserve(self) -> None:
        self._executor.started()

    def run(self) -> None:
        self._executor.call(Command.RUN, self)
        self._replays += 1

    def profile(self, replays: int) -> list[float]:
        times = []
        for _ in range(replays):
            process = self._executor.call(Command.PROFILE, self)
            times.append(list(process.page.nanoseconds[: len(self.launches)]))
        self._replays += replays
        return [statistics.median(column) * 1e-9 for column in zip(*times, strict=True)]

    @property
    def calls(self) -> tuple[int, ...]:
        """By this side's count of replays that came back."""
        return (self._replays,) * len(self.launches)

    def close(self) -> None:
        """Nothing of its own to give back: the executor is closed."""
