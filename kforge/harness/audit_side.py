"""One side of an audit: where the tensors of a command lie, what they hold before it and what must be left after it."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kforge.core.trial import Failure, FailureClass
from kforge.harness.forms import dense_strides
from kforge.harness.pairs import Contestant, ContestantFailure
from kforge.harness.process import POISONS, Process, Scratch, TensorArgument
from kforge.harness.session import Session
from kforge.harness.slots import ALIGN, PAGE, Place, round_up
from kforge.operators.base import Residency, Role, TensorSpec
from kforge.operators.numerics import numpy_dtype


@dataclass(frozen=True)
class Command:
    """``calls`` calls. Call i uses row (first + i) mod calls of every hot tensor, and of the streamed inputs copy
    first + i in its rotation. ``gap`` lines of 64 bytes lie between rows.

    ``given``: [calls, ...] per hot input, row by row. ``fixed``: whole tensors per row, for all others.
    """

    calls: int
    first: int
    gap: int
    given: Mapping[str, np.ndarray]
    fixed: tuple[Mapping[str, np.ndarray], ...]

    def inputs(self, row: int) -> dict[str, np.ndarray]:
        """What the call of this row reads."""
        return {**self.fixed[row], **{name: rows[row] for name, rows in self.given.items()}}

    @property
    def last(self) -> int:
        """Row of the last call."""
        return (self.first + self.calls - 1) % self.calls


@dataclass(frozen=True)
class _Mark:
    """A command's calls, and what each thread had run before it."""

    calls: int
    ran: tuple[float, ...]


class Side:
    """A contestant's process in an audit."""

    def __init__(self, contestant: Contestant, session: Session, process: Process, threads: int) -> None:
        self.contestant = contestant
        self._session = session
        self._process = process
        self._threads = threads
        self._specs = session.operator.tensors(session.workload)
        self._timed = dict(zip([s.name for s in self._specs], session.timed_arguments(process), strict=True))
        self._scratch: Scratch | None = None
        self._pattern = 1 + secrets.randbelow(255)
        self._marks: list[_Mark] = []

    def prepare(self) -> Failure | None:
        """Asks for the scratch."""
        scratch = self._process.timed_scratch(
            self._session.workload, self._threads, self._session.seconds_allowed()
        )
        if isinstance(scratch, Failure):
            return scratch
        self._scratch = scratch
        return None

    def run(self, command: Command, calls: int) -> float | Failure:
        """Seconds of the command, hand-over included; of the hand-over alone when ``calls`` is 0.

        The hot tensors are in the caches of the threads that will run it, where their last writer leaves them in an
        engine: how far this process has pushed them away is no property of the kernel.
        """
        arguments = []
        for spec in self._specs:
            if spec.residency is Residency.HOT:
                arguments.append(self._rows(spec, command))
            elif spec.role is Role.IN:
                arguments.append(self._timed[spec.name])
            else:
                arguments.append(self._whole(spec, command))
        for place in self._scratch.places if self._scratch is not None else ():
            self._session.slots.fence(place, self._pattern)
            self._session.slots.view(place)[:] = POISONS[0]
        self._marks.append(_Mark(0, self._process.child.usage().threads))
        hot = [dataclasses.replace(a, spoil_bytes=s.bytes) for s, a in zip(self._specs, arguments, strict=True)
               if s.residency is Residency.HOT]
        touched = self._process.touch(hot, self._threads, self._session.seconds_allowed())
        if isinstance(touched, Failure):
            return touched
        self._marks.append(_Mark(calls, self._process.child.usage().threads))
        return self._process.run(self._session.workload, arguments, self._scratch, self._threads, calls, command.first,
                                 self._session.seconds_allowed() * max(calls, 1))

    def _rows(self, spec: TensorSpec, command: Command) -> TensorArgument:
        """Fills the rows of a hot tensor: with what is given, or poison, and fences between them."""
        rows = self._view(spec, command)
        if spec.role is not Role.IN:
            self._slot(spec)[:] = self._pattern
        if spec.role is Role.OUT:
            rows[:, : spec.bytes] = POISONS[0]
        else:
            given = np.ascontiguousarray(command.given[spec.name])
            rows[:, : spec.bytes] = given.reshape(command.calls, -1).view(np.uint8)
        address = self._process.address(self._session.slots.place_at_page(spec.name, spec.bytes))
        return TensorArgument(address, dense_strides(spec.shape), command.calls, rows.shape[1])

    def _whole(self, spec: TensorSpec, command: Command) -> TensorArgument:
        """Restores a streamed in/out tensor, of which all calls of a command write the same one."""
        place = self._session.slots.place_at_page(spec.name, spec.bytes)
        self._session.slots.fence(place, self._pattern)
        given = np.ascontiguousarray(command.fixed[command.last][spec.name])
        self._session.slots.view(place)[:] = given.reshape(-1).view(np.uint8)
        return TensorArgument(self._process.address(place), dense_strides(spec.shape))

    def waited(self) -> float:
        """Seconds that the process and this one have waited for a processor in all."""
        return self._process.child.usage().waited

    def charges(self) -> list[float]:
        """Seconds per call that the busiest thread ran from each command of calls to whatever came next. The process
        must be idle.
        """
        ends = [*self._marks[1:], _Mark(0, self._process.child.usage().threads)]
        spans = zip(self._marks, ends, strict=True)
        return [_most(mark.ran, end.ran) / mark.calls for mark, end in spans if mark.calls]

    def outputs(self, command: Command) -> dict[str, np.ndarray]:
        """Copies of what the command left, [calls, ...] row by row; of a streamed in/out tensor what the last call
        left, in every row.
        """
        left = {}
        for spec in self._specs:
            if spec.role is Role.IN:
                continue
            kind, shape = numpy_dtype(spec.dtype), (command.calls, *spec.shape)
            if spec.residency is Residency.HOT:
                rows = np.ascontiguousarray(self._view(spec, command)[:, : spec.bytes])
                left[spec.name] = rows.view(kind).reshape(shape)
            else:
                place = self._session.slots.place_at_page(spec.name, spec.bytes)
                left[spec.name] = np.broadcast_to(
                    self._session.slots.view(place).view(kind).reshape(spec.shape).copy(), shape
                )
        return left

    def trespass(self, command: Command) -> Failure | None:
        """What the command wrote around its outputs and scratch, or into rows that were not to be used."""
        for spec in self._specs:
            if spec.role is Role.IN:
                continue
            if spec.residency is Residency.HOT:
                around = self._slot(spec).copy()
                rows = around[PAGE:][: command.calls * self._stride(spec, command)].reshape(command.calls, -1)
                rows[:, : spec.bytes] = self._pattern
                broken = bool((around != self._pattern).any())
            else:
                place = self._session.slots.place_at_page(spec.name, spec.bytes)
                broken = self._session.slots.broken_fence(place, self._pattern) is not None
            if broken:
                return Failure(FailureClass.FENCE, f"the kernel wrote outside {spec.name} in an audited call")
        for place in self._scratch.places if self._scratch is not None else ():
            if self._session.slots.broken_fence(place, self._pattern) is not None:
                return Failure(FailureClass.FENCE, "the kernel wrote outside its scratch in an audited call")
        return None

    def _slot(self, spec: TensorSpec) -> np.ndarray:
        """The whole of a tensor's slot."""
        slot = self._session.slots.place_at_page(spec.name, spec.bytes).slot
        return self._session.slots.view(Place(slot, 0, slot.size))

    def _view(self, spec: TensorSpec, command: Command) -> np.ndarray:
        """A hot tensor's rows with what lies between them, u8 [calls, stride]."""
        return self._slot(spec)[PAGE:][: command.calls * self._stride(spec, command)].reshape(command.calls, -1)

    def _stride(self, spec: TensorSpec, command: Command) -> int:
        return round_up(spec.bytes, ALIGN) + command.gap * ALIGN

    def failed(self, failure: Failure) -> ContestantFailure:
        return ContestantFailure(self.contestant.hash, failure)


def _most(before: Sequence[float], after: Sequence[float]) -> float:
    """Of any thread; infinite for a process that has died, of which nothing is known."""
    return max((end - start for start, end in zip(before, after, strict=False)), default=math.inf)
