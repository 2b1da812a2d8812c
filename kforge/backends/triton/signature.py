"""Which types a launch's arguments have in the compiler's eyes, and what it may rely on."""

from __future__ import annotations

import math
from dataclasses import replace

from kforge.core.dtypes import DType
from kforge.core.launch import Argument, ArgumentKind, Launch
from kforge.core.workload import Problem, Workload
from kforge.operators import get

ALIGNED = 16  # bytes of a pointer, elements of a stride: what a wide load needs
_POINTERS = {DType.F32: "*fp32", DType.F16: "*fp16", DType.BF16: "*bf16", DType.I8: "*i8", DType.U8: "*u8",
             DType.I32: "*i32", DType.I64: "*i64"}
_OTHERS = {ArgumentKind.STRIDE: "i64", ArgumentKind.AXIS: "i32", ArgumentKind.SCALAR: "fp32",
           ArgumentKind.SCRATCH: "*fp32"}


def specialised(launch: Launch, problem: Problem) -> Launch:
    """With the multiples that hold for every call: kforge aligns tensors, and the distance between rows is a multiple
    of 16 elements where what a row holds is one for all dynamic axes. A launcher has to see to both."""
    return replace(launch, arguments=tuple(replace(a, multiple=_multiple(a, problem)) for a in launch.arguments))


def types(launch: Launch, problem: Problem) -> tuple[str, ...]:
    """As Triton spells them, in order."""
    of = {spec.name: _POINTERS[spec.dtype] for spec in get(problem.operator).tensors(_at(problem, 1))}
    return tuple(of[a.name] if a.kind is ArgumentKind.TENSOR else _OTHERS[a.kind] for a in launch.arguments)


def _multiple(argument: Argument, problem: Problem) -> int:
    if argument.kind in (ArgumentKind.TENSOR, ArgumentKind.SCRATCH):
        return ALIGNED
    if argument.kind is not ArgumentKind.STRIDE:
        return 1
    shapes = [next(spec.shape for spec in get(problem.operator).tensors(_at(problem, n)) if spec.name == argument.name)
              for n in (1, 2)]
    inner = [shape[argument.dimension + 1:] for shape in shapes]
    return ALIGNED if inner[0] == inner[1] and inner[0] and math.prod(inner[0]) % ALIGNED == 0 else 1


def _at(problem: Problem, size: int) -> Workload:
    return Workload(problem, tuple(sorted((axis, size) for axis in get(problem.operator).dynamic_axes)))
