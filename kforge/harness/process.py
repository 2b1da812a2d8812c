"""A candidate's process as the parent uses it: tensors into slots, a command posted, outputs taken out and examined."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kforge.core.trial import Failure, FailureClass
from kforge.core.workload import Workload
from kforge.harness.control import Command
from kforge.harness.fenced import SCRATCH, FencedCall
from kforge.harness.slots import PAGE, Place, SlotFile, round_up
from kforge.harness.zygote import Child
from kforge.operators.base import Operator

SCRATCH_LIMIT = 256 << 20
_DOUBLED_SCRATCH = 64 << 10  # per thread
POISONS = (0xFF, 0x7F)  # as float32: a NaN, and 3.4e38


@dataclass(frozen=True)
class TensorArgument:
    address: int
    strides: tuple[int, ...]
    copies: int = 1
    copy_stride: int = 0
    spoil_bytes: int = 0  # of an output that the executor spoils between calls


@dataclass(frozen=True)
class Scratch:
    """Where calls find their scratch. The executor wipes it after each call, a large one now and then and in part, so
    that nothing that a kernel leaves there can be relied on.

    With a ``second`` area calls use both in turn, and no thread waits until all have wiped their share.
    """

    first: Place
    second: Place | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def stride(self) -> int:
        """Bytes from one area to the other; 0 when there is one."""
        return 0 if self.second is None else self.second.start - self.first.start


class Process:
    """One child with its slots."""

    def __init__(self, child: Child, slots: SlotFile, operator: Operator, reserve_address: int) -> None:
        self.child = child
        self.slots = slots
        self._operator = operator
        self._reserve = reserve_address

    def address(self, place: Place) -> int:
        return self._reserve + place.address_offset

    def scratch_bytes(self, workload: Workload, threads: int, seconds: float) -> int | Failure:
        """What the kernel asks for at these axes; the candidate's own code, so it runs in the child."""
        self._put_axes(workload)
        page = self.child.page
        page.command, page.threads, page.result = int(Command.SCRATCH), threads, 0
        elapsed = self.child.call(seconds)
        if isinstance(elapsed, Failure):
            return elapsed
        wanted = int(page.result)
        if not 0 <= wanted <= SCRATCH_LIMIT:
            limit = f"the limit is {SCRATCH_LIMIT} bytes"
            return Failure(FailureClass.MEMORY, f"the kernel asks for {wanted} bytes of scratch, {limit}")
        return wanted

    def timed_scratch(self, workload: Workload, threads: int, seconds: float) -> Scratch | Failure | None:
        """Page-aligned scratch for many calls in a row: two areas where that keeps them in cache."""
        wanted = self.scratch_bytes(workload, threads, seconds)
        if isinstance(wanted, Failure) or not wanted:
            return wanted or None
        first = self.slots.place_at_page(SCRATCH, wanted)
        if wanted > _DOUBLED_SCRATCH * threads:
            return Scratch(first)
        return Scratch(first, Place(first.slot, first.start + round_up(wanted, PAGE) + PAGE, wanted, fence=PAGE))

    def run(self, workload: Workload, tensors: Sequence[TensorArgument], scratch: Scratch | None, threads: int,
            calls: int, first: int, seconds: float, *, step: int = 1, staggered: bool = False,
            late: int | None = None, scalars: Sequence[float] | None = None) -> float | Failure:
        """Seconds for ``calls`` calls, hand-over included; call i reads copy (first + i step) mod copies.

        ``staggered``: the threads begin every call at moments of their own, drawn at random. ``late``: this one
        begins every call when the others are through, or wait for it. ``scalars``: those of timed calls, if not given.
        """
        self._put_axes(workload, scalars)
        page = self.child.page
        page.command, page.threads, page.tensors = int(Command.RUN), threads, len(tensors)
        page.calls, page.first, page.step = calls, first, step
        page.seed, page.staggered = secrets.randbits(32), staggered
        page.late = 0 if late is None else late + 1
        page.scratch = self.address(scratch.first) if scratch is not None else 0
        page.scratch_bytes = scratch.first.size if scratch is not None else 0
        page.scratch_stride = scratch.stride if scratch is not None else 0
        self._put_tensors(tensors)
        self.slots.wipe_stacks(self.child.number)
        return self.child.call(seconds)

    def touch(self, tensors: Sequence[TensorArgument], threads: int, seconds: float) -> float | Failure:
        """Has every thread read the tensors, ``spoil_bytes`` of each copy, without the kernel: what was just written by
        another process lies in their caches then, as activations do in an engine.
        """
        page = self.child.page
        page.command, page.threads, page.tensors = int(Command.TOUCH), threads, len(tensors)
        self._put_tensors(tensors)
        return self.child.call(seconds)

    def _put_tensors(self, tensors: Sequence[TensorArgument]) -> None:
        for entry, tensor in zip(self.child.page.tensor, tensors, strict=False):
            entry.address, entry.copies, entry.copy_stride = tensor.address, tensor.copies, tensor.copy_stride
            entry.spoil_bytes = tensor.spoil_bytes
            entry.strides[: len(tensor.strides)] = tensor.strides

    def run_once(self, workload: Workload, inputs: Mapping[str, np.ndarray], threads: int, poison: int, fence: int,
                 strided: bool, seconds: float, late: int | None = None) -> dict[str, np.ndarray] | Failure:
        """One call on these inputs in fenced slots. Outputs and scratch start as ``poison``, fences as ``fence``.

        Returns copies of the outputs; a failure when the call failed, a fence broke or an input changed.
        """
        wanted = self.scratch_bytes(workload, threads, seconds)
        if isinstance(wanted, Failure):
            return wanted
        call = FencedCall(self.slots, self._operator, workload, inputs, wanted, poison, fence, strided)
        arguments = [TensorArgument(self.address(place), form.strides) for form, place in call.tensors]
        scratch = call.scratch
        elapsed = self.run(workload, arguments, Scratch(scratch) if scratch else None, threads, 1, 0, seconds,
                           late=late, scalars=self._operator.given_scalars(workload, inputs))
        if isinstance(elapsed, Failure):
            return elapsed
        return call.outputs()

    def _put_axes(self, workload: Workload, scalars: Sequence[float] | None = None) -> None:
        axes = workload.axes
        for i, name in enumerate(self._operator.dynamic_axes):
            self.child.page.axes[i] = axes[name]
        for i, value in enumerate(self._operator.scalars(workload) if scalars is None else scalars):
            self.child.page.scalars[i] = value

    def close(self) -> None:
        self.child.close()
