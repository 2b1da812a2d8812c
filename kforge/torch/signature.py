"""How an operator of kforge is called with tensors: what is an argument, what is a result, and whose extents are whose.

Nothing here needs torch. Arguments are the tensors in launch order without pure outputs, then the dynamic axes that no
tensor's shape tells, then scalars; results are the pure outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kforge.core.workload import Problem, Workload
from kforge.operators import get
from kforge.operators.base import Role, TensorSpec

_SAMPLE = 48  # an axis while shapes are asked: a multiple of what extents are multiples of


def described(problem: Problem, name: str) -> dict[str, Any]:
    """The call as ``calling`` reads it. Raises ValueError for a problem that its operator does not have."""
    operator = get(problem.operator)
    base = dict.fromkeys(operator.dynamic_axes, _SAMPLE)
    moved = {axis: operator.tensors(_at(problem, {**base, axis: _SAMPLE + 1})) for axis in operator.dynamic_axes}
    tensors = []
    told: set[str] = set()
    for i, spec in enumerate(operator.tensors(_at(problem, base))):
        shape = [_extent(moved, i, j, extent) for j, extent in enumerate(spec.shape)]
        tensors.append({"name": spec.name, "dtype": spec.dtype.value, "role": spec.role.value, "shape": shape})
        if spec.role is not Role.OUT:
            told |= {axis for axis, _, _ in shape}
    explicit = [axis for axis in operator.dynamic_axes if axis not in told]
    usual = operator.scalars(_at(problem, base))  # those of timed calls
    scalars = [[name, value] for name, value in zip(operator.scalar_names, usual, strict=True)]
    return {
        "name": name,
        "operator": problem.operator,
        "static": problem.attributes,
        "schema": _schema(tensors, explicit, scalars),
        "tensors": tensors,
        "explicit": explicit,
        "dynamic": list(operator.dynamic_axes),
        "scalars": scalars,
    }


def _at(problem: Problem, axes: Mapping[str, int]) -> Workload:
    return Workload(problem, tuple(sorted(axes.items())))


def _schema(tensors: Sequence[Mapping[str, Any]], explicit: Sequence[str], scalars: Sequence[Sequence[Any]]) -> str:
    """In torch's language for schemas, without a name."""
    marks = iter("abcdefghij")
    parts = [f"Tensor({next(marks)}!) {t['name']}" if t["role"] == Role.INOUT else f"Tensor {t['name']}"
             for t in tensors if t["role"] != Role.OUT]
    parts += [f"SymInt {axis}" for axis in explicit]
    parts += [f"float {name}={value!r}" for name, value in scalars]
    returned = ["Tensor" for t in tensors if t["role"] == Role.OUT]
    result = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
    return f"({', '.join(parts)}) -> {result}"


def _extent(moved: Mapping[str, Sequence[TensorSpec]], tensor: int, place: int, at: int) -> list[Any]:
    """[axis, factor, offset]"""
    slopes = {axis: specs[tensor].shape[place] - at for axis, specs in moved.items()}
    varying = [axis for axis, slope in slopes.items() if slope]
    if not varying:
        return ["", 0, at]
    if len(varying) > 1:
        raise ValueError(f"an extent of tensor {tensor} depends on {', '.join(varying)}: no shape tells them apart")
    factor = slopes[varying[0]]
    return [varying[0], factor, at - factor * _SAMPLE]
