"""One call's tensors and scratch between fences, and what was done to them: whatever process runs the candidate."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping
from types import TracebackType

import numpy as np

from kforge.core.errors import KforgeError
from kforge.core.trial import Failure, FailureClass
from kforge.core.workload import Workload
from kforge.harness.control import SharedMemory
from kforge.harness.forms import Form
from kforge.harness.slots import SlotFile, SlotRequest
from kforge.operators.base import Operator, Role

SCRATCH = "scratch"
_ROOM = 8 << 30  # bytes of address space for one call's tensors; pages exist once they are written
_SHRINK, _GROW, _SEAL = 2, 4, 1  # fcntl.h: F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL


class FencedCall:
    """Inputs in their slots, outputs and scratch poisoned, fences around all of them; afterwards ``outputs``.

    ``tensors``: each with its form and place, in launch order; ``scratch``: None where none is wanted.
    """

    def __init__(self, slots: SlotFile, operator: Operator, workload: Workload, inputs: Mapping[str, np.ndarray],
                 scratch_bytes: int, poison: int, fence: int, strided: bool) -> None:
        forms = [Form.of(spec, strided) for spec in operator.tensors(workload)]
        self.tensors = [(form, slots.place_at_end(form.spec.name, form.bytes)) for form in forms]
        for form, place in self.tensors:
            slots.fence(place, fence)
            memory = slots.view(place)
            memory[:] = poison
            form.gaps(memory)[...] = fence
            if form.spec.role is not Role.OUT:
                form.elements(memory)[...] = inputs[form.spec.name].reshape(form.spec.shape)
        self.scratch = slots.place_at_end(SCRATCH, scratch_bytes) if scratch_bytes else None
        if self.scratch is not None:
            slots.fence(self.scratch, fence)
            slots.view(self.scratch)[:] = poison
        self._slots, self._inputs, self._fence = slots, inputs, fence

    def outputs(self) -> dict[str, np.ndarray] | Failure:
        """Copies of the outputs; a failure where a fence broke or an input changed."""
        if (failure := self._trespass()) is not None:
            return failure
        return {form.spec.name: form.elements(self._slots.view(place)).copy()
                for form, place in self.tensors if form.spec.role is not Role.IN}

    def _trespass(self) -> Failure | None:
        """What the kernel wrote that was not its to write."""
        places = [place for _, place in self.tensors]
        for place in (*places, *([self.scratch] if self.scratch is not None else [])):
            if (offset := self._slots.broken_fence(place, self._fence)) is not None:
                name = place.slot.name
                where = f"byte {offset} from the start of {name}, which has {place.size}"
                return Failure(FailureClass.FENCE, f"the kernel wrote outside {name}", where)
        for form, place in self.tensors:
            memory = self._slots.view(place)
            name = form.spec.name
            if (form.gaps(memory) != self._fence).any():
                reason = f"the kernel wrote between the rows of {name}: its stride is not its width"
                return Failure(FailureClass.FENCE, reason)
            if form.spec.role is Role.IN:
                given = np.ascontiguousarray(self._inputs[name]).reshape(form.spec.shape)
                left = np.ascontiguousarray(form.elements(memory))
                if given.tobytes() != left.tobytes():
                    return Failure(FailureClass.INPUT_MODIFIED, f"the kernel changed its input {name}")
        return None


class FencedMemory:
    """Memory that a child which already runs maps anew for each call; of a fixed size that the child cannot change."""

    def __init__(self) -> None:
        self._memory = SharedMemory("kforge-fenced", _ROOM, sealable=True)
        fcntl.fcntl(self._memory.fd, fcntl.F_ADD_SEALS, _SHRINK | _GROW | _SEAL)
        self._slots: SlotFile | None = None

    @property
    def fd(self) -> int:
        return self._memory.fd

    def call(self, operator: Operator, workload: Workload, inputs: Mapping[str, np.ndarray], scratch_bytes: int,
             poison: int, fence: int, strided: bool) -> FencedCall:
        """The next call; the one before is over. Raises KforgeError where it is too large."""
        self._forget()
        forms = [Form.of(spec, strided) for spec in operator.tensors(workload)]
        requests = [SlotRequest(form.spec.name, form.bytes, form.spec.role is not Role.IN) for form in forms]
        requests += [SlotRequest(SCRATCH, scratch_bytes, True)] if scratch_bytes else []
        if sum(request.size + (1 << 16) for request in requests) > _ROOM:
            raise KforgeError(f"{workload.key} has more than {_ROOM >> 30} GiB of tensors, too many to check here")
        self._slots = SlotFile(requests, 0, self._memory)
        return FencedCall(self._slots, operator, workload, inputs, scratch_bytes, poison, fence, strided)

    @property
    def slots(self) -> SlotFile:
        """Those of the last call."""
        assert self._slots is not None
        return self._slots

    def _forget(self) -> None:
        """Gives the memory of the last call back to the machine."""
        if self._slots is not None:
            used = max(slot.file_offset + slot.size for slot in self._slots.slots)
            self._slots.close()
            self._slots = None
            self._memory.discard(used)

    def close(self) -> None:
        if self._slots is not None:
            self._slots.close()
        self._memory.close()

    def __enter__(self) -> FencedMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

