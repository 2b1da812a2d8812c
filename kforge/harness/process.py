"""A candidate's process as the parent uses it: tensors put into slots, a command posted, outputs taken out and examined."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kforge.core.dtypes import DType
from kforge.core.trial import Failure, FailureClass
from kforge.core.workload import Workload
from kforge.harness.control import Command
from kforge.harness.slots import ALIGN, Place, SlotFile, round_up
from kforge.harness.values import numpy_dtype
from kforge.harness.zygote import Child
from kforge.operators.base import DENSE, Operator, Residency, Role, TensorSpec

SCRATCH = "(scratch)"
SCRATCH_LIMIT = 256 << 20
POISONS = (0xFF, 0x7F)  # as float32: a NaN, and 3.4e38
_GAP_ELEMENTS = 16  # between the rows of a strided tensor


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements, row-major."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def may_be_strided(spec: TensorSpec) -> bool:
    """Activations are slices of wider tensors in the engine; weights, tables and caches never are."""
    return len(spec.shape) == 2 and spec.layout == DENSE and spec.residency is Residency.HOT and spec.dtype is DType.F32


def row_pitch(spec: TensorSpec, strided: bool) -> int:
    """Elements from one row to the next of a 2-d tensor; keeps rows aligned."""
    cols = spec.shape[-1]
    return round_up(cols, ALIGN // spec.dtype.size) + _GAP_ELEMENTS if strided and may_be_strided(spec) else cols


def slot_bytes(spec: TensorSpec) -> int:
    """Room for the tensor in either form."""
    if not may_be_strided(spec):
        return spec.bytes
    return spec.shape[0] * row_pitch(spec, True) * spec.dtype.size


@dataclass(frozen=True)
class TensorArgument:
    address: int
    strides: tuple[int, ...]
    copies: int = 1
    copy_stride: int = 0
    spoil_bytes: int = 0  # of an output that the executor spoils between calls


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

    def run(self, workload: Workload, tensors: Sequence[TensorArgument], scratch: Place | None, threads: int, calls: int,
            first: int, seconds: float) -> float | Failure:  # fmt: skip
        """Seconds for ``calls`` calls, hand-over included; call i reads copy (first + i) mod copies of each tensor."""
        self._put_axes(workload)
        page = self.child.page
        page.command, page.threads, page.tensors = int(Command.RUN), threads, len(tensors)
        page.calls, page.first, page.seed = calls, first, secrets.randbits(32)
        page.scratch = self.address(scratch) if scratch is not None else 0
        page.scratch_bytes = scratch.size if scratch is not None else 0
        for entry, tensor in zip(page.tensor, tensors, strict=False):
            entry.address, entry.copies, entry.copy_stride = tensor.address, tensor.copies, tensor.copy_stride
            entry.spoil_bytes = tensor.spoil_bytes
            entry.strides[: len(tensor.strides)] = tensor.strides
        return self.child.call(seconds)

    def run_once(self, workload: Workload, inputs: Mapping[str, np.ndarray], threads: int, poison: int, fence: int,
                 strided: bool, seconds: float) -> dict[str, np.ndarray] | Failure:  # fmt: skip
        """One call on these inputs in fenced slots. Outputs and scratch hold ``poison`` before it; fences hold ``fence``.

        Returns copies of the outputs; a failure when the call failed, a fence broke or an input changed.
        """
        wanted = self.scratch_bytes(workload, threads, seconds)
        if isinstance(wanted, Failure):
            return wanted
        specs = self._operator.tensors(workload)
        places: dict[str, Place] = {}
        arguments = []
        for spec in specs:
            pitch = row_pitch(spec, strided) if spec.shape else 1
            size = spec.bytes if pitch == (spec.shape or (1,))[-1] else spec.shape[0] * pitch * spec.dtype.size
            place = self.slots.place_at_end(spec.name, size)
            places[spec.name] = place
            self.slots.fence(place, fence)
            rows = self._rows(place, spec, pitch, fence)
            if spec.role is Role.OUT:
                rows.view(np.uint8)[...] = poison
            else:
                rows[...] = inputs[spec.name].reshape(rows.shape)
            strides = dense_strides(spec.shape)
            if pitch != (spec.shape or (1,))[-1]:
                strides = (pitch, 1)
            arguments.append(TensorArgument(self.address(place), strides))
        scratch = self.slots.place_at_end(SCRATCH, wanted) if wanted else None
        if scratch is not None:
            self.slots.fence(scratch, fence)
            self.slots.view(scratch)[:] = poison
        elapsed = self.run(workload, arguments, scratch, threads, 1, 0, seconds)
        if isinstance(elapsed, Failure):
            return elapsed
        named = [(spec.name, places[spec.name]) for spec in specs]
        for name, place in [*named, *([("scratch", scratch)] if scratch is not None else [])]:
            if (offset := self.slots.broken_fence(place, fence)) is not None:
                where = f"byte {offset} from the start of {name}, which has {place.size}"
                return Failure(FailureClass.FENCE, f"the kernel wrote outside {name}", where)
        outputs = {}
        for spec in specs:
            pitch = row_pitch(spec, strided) if spec.shape else 1
            rows, gaps = self._split(places[spec.name], spec, pitch)
            if gaps is not None and (gaps != fence).any():
                return Failure(FailureClass.FENCE, f"the kernel wrote between the rows of {spec.name} (its stride is not its width)")
            if spec.role is Role.IN:
                if not np.array_equal(rows.view(np.uint8), _bytes(inputs[spec.name]).reshape(rows.view(np.uint8).shape)):
                    return Failure(FailureClass.INPUT_MODIFIED, f"the kernel changed its input {spec.name}")
            else:
                outputs[spec.name] = np.array(rows).reshape(spec.shape)
        return outputs

    def _rows(self, place: Place, spec: TensorSpec, pitch: int, fence: int) -> np.ndarray:
        rows, gaps = self._split(place, spec, pitch)
        if gaps is not None:
            gaps[...] = fence
        return rows

    def _split(self, place: Place, spec: TensorSpec, pitch: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The tensor's elements, and the bytes between its rows when there are any; views of the slot."""
        elements = self.slots.view(place).view(numpy_dtype(spec.dtype))
        cols = (spec.shape or (1,))[-1]
        if pitch == cols:
            return elements, None
        table = elements.reshape(spec.shape[0], pitch)
        return table[:, :cols], table[:, cols:].view(np.uint8)

    def _put_axes(self, workload: Workload) -> None:
        axes = workload.axes
        for i, name in enumerate(self._operator.dynamic_axes):
            self.child.page.axes[i] = axes[name]
        for i, value in enumerate(self._operator.scalars(workload)):
            self.child.page.scalars[i] = value

    def close(self) -> None:
        self.child.close()


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
