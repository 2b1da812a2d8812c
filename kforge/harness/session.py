"""A workload made ready for measuring: its inputs in a zygote's arena, its slots, and what timed calls must give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kforge.core.image import Image
from kforge.core.trial import Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import call_seconds_allowed
from kforge.harness.control import SharedMemory
from kforge.harness.expected import Expected
from kforge.harness.forms import Form, dense_strides
from kforge.harness.process import SCRATCH, SCRATCH_LIMIT, Process, TensorArgument
from kforge.harness.proof import proven
from kforge.harness.slots import PAGE, SlotFile, SlotRequest, round_up
from kforge.harness.zygote import ArenaSegment, Zygote
from kforge.operators.base import Distribution, Operator, Residency, Role, TensorSpec

# At least this much memory, or four times the cache, between two uses of one copy. A guest may be told of a smaller cache
# than it has: at 128 MiB kernels read 1.13 times as fast as memory can where 32 MiB are reported, from 256 MiB on 1.00.
_ROTATION_BYTES = 256 << 20
_LARGEST_ROTATION = 1 << 30


@dataclass(frozen=True)
class ArenaTensor:
    """Where timed calls read a tensor: ``copies``, ``copy_stride`` bytes apart, from ``offset`` of the arena on."""

    offset: int
    copies: int
    copy_stride: int


class TimedInputs:
    """What timed calls of a workload read: written to a memory file once, from which every zygote fills its arena.

    Streamed tensors come in so many copies that one has left the last-level cache before it is used again.
    """

    def __init__(self, operator: Operator, workload: Workload, seed: int, llc_bytes: int) -> None:
        self.operator = operator
        self.workload = workload
        self.inputs: Mapping[str, np.ndarray] = operator.inputs(workload, seed, Distribution.NORMAL)
        self._expected: dict[NumericsClass, Expected] = {}
        read = [spec for spec in operator.tensors(workload) if spec.role is Role.IN]
        copies = rotation_copies(read, llc_bytes)
        segments, tensors = [], {}
        destination = source = 0
        for spec in read:
            n = copies if spec.residency is Residency.STREAMED else 1
            stride = round_up(spec.bytes, PAGE)
            tensors[spec.name] = ArenaTensor(destination, n, stride)
            segments.append(ArenaSegment(destination, source, spec.bytes, n, stride))
            destination += n * stride
            source += stride
        self.arena_bytes = destination
        self.tensors = tensors
        self.segments = segments
        self.source = SharedMemory("kforge-inputs", max(source, PAGE))
        view = np.frombuffer(self.source.map, dtype=np.uint8)
        for spec, segment in zip(read, segments, strict=True):
            data = np.ascontiguousarray(self.inputs[spec.name]).reshape(-1).view(np.uint8)
            view[segment.source : segment.source + segment.size] = data

    def expected(self, numerics: NumericsClass) -> Expected:
        """What timed calls must leave; computed on first use."""
        if numerics not in self._expected:
            self._expected[numerics] = Expected(self.operator, self.workload, self.inputs, numerics)
        return self._expected[numerics]

    def close(self) -> None:
        self.source.close()


def rotation_copies(specs: Sequence[TensorSpec], llc_bytes: int) -> int:
    """Copies of the streamed tensors that together exceed the last-level cache four times (and 256 MiB)."""
    streamed = sum(round_up(s.bytes, PAGE) for s in specs if s.residency is Residency.STREAMED)
    if not streamed:
        return 1
    return -(-min(max(_ROTATION_BYTES, 4 * llc_bytes), _LARGEST_ROTATION) // streamed)


class Session:
    """One zygote for one workload, and the slots of its processes.

    Processes of a session share the slot file: the same physical pages at the same addresses for candidate and
    incumbent. What one left behind in outputs and scratch is poisoned before the other runs.
    """

    def __init__(self, timed: TimedInputs, shapes: Sequence[Workload], cpus: Sequence[int]) -> None:
        self.timed = timed
        self.cpus = tuple(cpus)
        self.operator = timed.operator
        self.workload = timed.workload
        sizes: dict[str, SlotRequest] = {}
        for shape in (timed.workload, *shapes):
            for spec in self.operator.tensors(shape):
                before = sizes[spec.name].size if spec.name in sizes else 0
                size = max(spec.bytes, Form.of(spec, strided=True).bytes, before)
                sizes[spec.name] = SlotRequest(spec.name, size, spec.role is not Role.IN)
        self.slots = SlotFile([*sizes.values(), SlotRequest(SCRATCH, SCRATCH_LIMIT, True)])
        try:
            self.zygote = Zygote(timed.arena_bytes, self.slots.reserve_bytes, timed.source, timed.segments)
        except BaseException:
            self.slots.close()
            raise

    def start(self, image: Image, cpu_seconds: int = 120) -> Process | Failure:
        child = self.zygote.spawn(image, self.slots, self.cpus, cpu_seconds, proven().run.needed)
        if isinstance(child, Failure):
            return child
        return Process(child, self.slots, self.operator, self.zygote.reserve_address)

    def timed_arguments(self, process: Process) -> list[TensorArgument]:
        """Inputs in the arena, outputs page-aligned in their slots."""
        arguments = []
        for spec in self.operator.tensors(self.workload):
            strides = dense_strides(spec.shape)
            if spec.name in self.timed.tensors:
                at = self.timed.tensors[spec.name]
                address = self.zygote.arena_address + at.offset
                arguments.append(TensorArgument(address, strides, at.copies, at.copy_stride))
            else:
                place = self.slots.place_at_page(spec.name, spec.bytes)
                spoil = spec.bytes if spec.role is Role.OUT else 0
                arguments.append(TensorArgument(process.address(place), strides, spoil_bytes=spoil))
        return arguments

    def seconds_allowed(self) -> float:
        """Time limit of the first call at the workload's size."""
        return call_seconds_allowed(self.operator, self.workload)

    def close(self) -> None:
        self.zygote.close()
        self.slots.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
