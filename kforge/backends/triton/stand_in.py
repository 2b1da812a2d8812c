"""Triton's interpreter in the sandbox: what stands in for a GPU that is not here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kforge.backends.triton import source
from kforge.backends.triton.installed import ARCHES, command, package_folder, readable, triton
from kforge.backends.triton.signature import types
from kforge.core.drafts import draft_folder
from kforge.core.launch import Argument, ArgumentKind, Launch, LaunchError
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure, FailureClass
from kforge.core.workload import Workload
from kforge.harness.fenced import FencedCall, FencedMemory
from kforge.harness.sandbox import Limits, Served
from kforge.operators import get

if TYPE_CHECKING:
    import numpy as np

_LIMITS = Limits(1800, 24 << 30, 16 << 20)
_PATIENCE = 30  # seconds for the child to start, and times as many for a call as native code gets
_SCRATCH_LIMIT = 1 << 30
_MOST_GROUPS = ((1 << 31) - 1, 65535, 65535)  # CUDA C++ Programming Guide, compute capabilities; HIP allows as many
_PRECISIONS = {"cuda": ("tf32", ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")),
               "hip": ("ieee", ("ieee", "bf16x3", "bf16x6"))}


class Interpreter:
    """See ``kforge.backends.verbs.StandIn``. Groups run one after another: in a second run (``late`` given) in another
    order, so that one that reads what another writes shows."""

    where = "interpreter"

    def __init__(self, candidate: Candidate, launches: Sequence[Launch], target: Target) -> None:
        self._candidate, self._launches, self._target = candidate, tuple(launches), target
        self._memory = FencedMemory()
        self._child: Served | None = None
        self._folder: Any = None

    def run_once(self, workload: Workload, inputs: Mapping[str, np.ndarray], threads: int, poison: int, fence: int,
                 strided: bool, seconds: float, late: int | None = None) -> dict[str, np.ndarray] | Failure:
        """See ``kforge.backends.verbs.Caller``; ``threads`` says nothing here."""
        try:
            scratch = max(launch.scratch_bytes(workload.axes) for launch in self._launches)
            grids = [launch.groups(workload.axes) for launch in self._launches]
        except LaunchError as error:
            return Failure(FailureClass.TEMPLATE, f"a launch has no size: {error}")
        for launch, grid in zip(self._launches, grids, strict=True):
            if any(n > most for n, most in zip(grid, _MOST_GROUPS, strict=True)):
                return Failure(FailureClass.LOAD, f"launch {launch.entry} has {grid} groups, more than {_MOST_GROUPS}")
        if scratch > _SCRATCH_LIMIT:
            return Failure(FailureClass.MEMORY, f"the kernel asks for {scratch} bytes of scratch, the limit is "
                           f"{_SCRATCH_LIMIT} bytes")
        operator = get(workload.problem.operator)
        call = self._memory.call(operator, workload, inputs, scratch, poison, fence, strided)
        values = dict(zip(operator.scalar_names, operator.given_scalars(workload, inputs), strict=True))
        job = self._job(call, workload, grids, values, 0 if late is None else 1 + late + 7 * poison)
        answer = self._asked(job, _PATIENCE * seconds)
        return answer if answer is not None else call.outputs()

    def _job(self, call: FencedCall, workload: Workload, grids: Sequence[tuple[int, int, int]],
             values: Mapping[str, float], order: int) -> dict[str, Any]:
        places = {form.spec.name: place for form, place in call.tensors}
        strides = {form.spec.name: form.strides for form, _ in call.tensors}
        if call.scratch is not None:
            places["scratch"] = call.scratch
        first = next(iter(places.values()))

        def given(argument: Argument, kind: str) -> tuple[str, float]:
            if argument.kind in (ArgumentKind.TENSOR, ArgumentKind.SCRATCH):
                return kind, places.get(argument.name, first).address_offset
            if argument.kind is ArgumentKind.STRIDE:
                return kind, strides[argument.name][argument.dimension]
            return kind, workload.axes[argument.name] if argument.kind is ArgumentKind.AXIS else values[argument.name]

        launches = [{"entry": launch.entry, "grid": grid,
                     "arguments": [given(a, t) for a, t in zip(launch.arguments, types(launch, workload.problem),
                                                               strict=True)]}
                    for launch, grid in zip(self._launches, grids, strict=True) if 0 not in grid]
        slots = self._memory.slots
        return {"reserve": slots.reserve_bytes, "order": order, "launches": launches,
                "slots": [(s.address_offset, s.file_offset, s.size) for s in slots.slots],
                "tensors": [{"name": name, "at": place.address_offset, "bytes": place.size,
                             "writable": place.slot.writable} for name, place in places.items()]}

    def _asked(self, job: dict[str, Any], seconds: float) -> Failure | None:
        if self._child is None:
            self._child = self._started()
            seconds += _PATIENCE
        line = self._child.ask(json.dumps(job).encode(), seconds)
        if line is None:
            return self._ended(seconds)
        try:
            answer = json.loads(line)
            if answer.get("ok") is True:
                return None
            return Failure(FailureClass(answer["failure"]), str(answer["reason"])[:500], str(answer["detail"])[:500])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return Failure(FailureClass.CRASH, "the interpreter's process answered something else", repr(line[:200]))

    def _ended(self, seconds: float) -> Failure:
        assert self._child is not None
        outcome = self._child.end()
        self._stop()
        if outcome.timed_out:
            return Failure(FailureClass.TIMEOUT, f"the interpreter did not come back within {seconds:.3g} s")
        how = f"signal {-outcome.code}" if outcome.code < 0 else f"exit status {outcome.code}"
        return Failure(FailureClass.CRASH, f"the interpreter's process ended with {how}", outcome.text.strip()[-500:])

    def _started(self) -> Served:
        found = triton()
        kind = ARCHES[self._target.arch][0]
        precision, allowed = _PRECISIONS[kind]
        self._folder = draft_folder()
        work: Path = self._folder.__enter__()
        (work / "kernel.py").write_text(self._candidate.source, encoding="utf-8")
        job = {"triton": str(found.folder), "numpy": str(package_folder("numpy")), "file": self._memory.fd,
               "precision": precision, "precisions": allowed + (("tf32",) if self._target.arch == "gfx942" else ())}
        (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
        return Served(command("interpret.py"), work, _LIMITS, readable(found, "numpy"), fds=(self._memory.fd,))

    def _stop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
        if self._folder is not None:
            self._folder.__exit__(None, None, None)
            self._folder = None

    def close(self) -> None:
        self._stop()
        self._memory.close()


def stand_in(candidate: Candidate, artifact: Artifact, target: Target) -> Interpreter | Failure:
    """The interpreter for the source that the artifact was built from."""
    refused = source.admit(candidate.source)
    return refused if refused is not None else Interpreter(candidate, artifact.launches, target)
