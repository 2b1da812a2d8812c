"""Many calls on the same inputs, each into outputs of its own: a race that shows seldom shows here.

A wrong or differing output with the probability p in each call is missed by n calls with the probability (1 - p)^n:
7,000 calls miss a race that shows one time in a thousand with a probability of 0.0009. In every second thousand the
threads begin each call at moments of their own, up to some microseconds apart, so that p is seldom smaller than in use.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from kforge.core.trial import Failure, FailureClass
from kforge.harness.cases import Answer, Case, call_seconds_allowed
from kforge.harness.check import judge_outputs
from kforge.harness.forms import dense_strides
from kforge.harness.process import POISONS, SCRATCH, SCRATCH_LIMIT, Process, Scratch, TensorArgument
from kforge.harness.slots import ALIGN, PAGE, Place, round_up
from kforge.operators.base import Operator, Role, TensorSpec
from kforge.operators.numerics import numpy_dtype

REPEATS = 7_000
_AT_ONCE = 1_000  # calls of one hand-over
_ROOM = 8 << 20  # of outputs: they lie at the beginning of the scratch's slot, the scratch itself at its end


def repeat(process: Process, operator: Operator, case: Case, answer: Answer, threads: int,
           seconds: float) -> int | Failure:
    """How many calls were made, REPEATS or as many as ``seconds`` allow (at least one hand-over). The first output must
    be right and all others equal to it, to the bit, whatever the class of the kernel.
    """
    workload = case.workload
    allowed = call_seconds_allowed(operator, workload)
    wanted = process.scratch_bytes(workload, threads, allowed)
    if isinstance(wanted, Failure):
        return wanted
    specs = operator.tensors(workload)
    written = [spec for spec in specs if spec.role is not Role.IN]
    strides = {spec.name: round_up(spec.bytes, ALIGN) for spec in written}
    calls = max(1, min(_AT_ONCE, _ROOM // sum(strides.values())))
    room = calls * sum(strides.values())
    if PAGE + room + wanted > SCRATCH_LIMIT:
        return 0
    slots = process.slots
    region = slots.place_at_page(SCRATCH, room)
    scratch = Scratch(slots.place_at_end(SCRATCH, wanted)) if wanted else None
    arguments: list[TensorArgument] = []
    copies: dict[str, np.ndarray] = {}
    start = region.start
    for spec in specs:
        if spec.role is Role.IN:
            place = slots.place_at_end(spec.name, spec.bytes)
            slots.view(place)[:] = np.ascontiguousarray(answer.inputs[spec.name]).reshape(-1).view(np.uint8)
            arguments.append(TensorArgument(process.address(place), dense_strides(spec.shape)))
            continue
        stride = strides[spec.name]
        place = Place(region.slot, start, calls * stride)
        copies[spec.name] = slots.view(place).reshape(calls, stride)[:, :spec.bytes]
        arguments.append(TensorArgument(process.address(place), dense_strides(spec.shape), calls, stride))
        start += calls * stride
    done = 0
    until = time.perf_counter() + seconds
    while done < REPEATS and (not done or time.perf_counter() < until):
        for spec in written:
            given = POISONS[0] if spec.role is Role.OUT else answer.inputs[spec.name].reshape(-1).view(np.uint8)
            copies[spec.name][:] = given
        elapsed = process.run(workload, arguments, scratch, threads, calls, 0, allowed + calls * allowed / 100,
                              staggered=bool(done // calls % 2))
        if isinstance(elapsed, Failure):
            return elapsed
        if (failure := _differing(written, copies, answer)) is not None:
            return failure
        done += calls
    return done


def _differing(written: Sequence[TensorSpec], copies: dict[str, np.ndarray], answer: Answer) -> Failure | None:
    first = {spec.name: copies[spec.name][0].copy().view(numpy_dtype(spec.dtype)).reshape(spec.shape)
             for spec in written}
    if isinstance(wrong := judge_outputs(written, first, answer), Failure):
        return wrong
    for spec in written:
        if (different := (copies[spec.name] != copies[spec.name][0]).any(axis=1)).any():
            count = f"{int(different.sum())} of {len(different)} calls"
            return Failure(FailureClass.NONDETERMINISTIC, "calls on the same inputs differ", f"{spec.name}: {count}")
    return None
