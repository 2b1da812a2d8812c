"""kforge's own reference as a definition calls it, for operators that have no plain PyTorch in ``references``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem, Workload
from kforge.interchange.mapping import workload_at
from kforge.operators import get
from kforge.operators.base import Role

if TYPE_CHECKING:
    import numpy as np


def outputs(key: str, given: Sequence[object]) -> object:
    """float64 reference of problem ``key``. ``given``: tensors in launch order, then scalars. An output, or a tuple."""
    import numpy as np
    import torch

    problem = Problem.parse(key)
    operator = get(problem.operator)
    arrays = [
        np.asarray(value.detach().cpu()) if isinstance(value, torch.Tensor) else np.array(value) for value in given
    ]
    workload = _workload(problem, arrays)
    specs = operator.tensors(workload)
    names = [spec.name for spec in specs if spec.role is not Role.OUT] + list(operator.scalar_names)
    inputs = dict(zip(names, arrays, strict=True))
    inputs |= {spec.name: inputs[spec.name].view(np.uint8) for spec in specs if spec.dtype is DType.U8}
    made = operator.reference(workload, inputs)
    types = {DType.I32: torch.int32, DType.I8: torch.int8}
    results = []
    for spec in (s for s in specs if s.role is not Role.IN):
        exact = made[spec.name].reference
        if spec.dtype is DType.I8:  # the reference of what is quantised is the quotient before it is rounded
            exact = np.rint(exact)
        results.append(torch.tensor(exact, dtype=types.get(spec.dtype, torch.float32)))
    return results[0] if len(results) == 1 else tuple(results)


def _workload(problem: Problem, arrays: Sequence[np.ndarray]) -> Workload:
    """The dynamic axes that give the inputs these shapes; the longest context, no extent, is read from its tensor."""
    from kforge.interchange.contracts import definition_of, with_tokens

    definition = definition_of(problem)
    known = {
        axis: extent
        for tensor, array in zip(definition.inputs.values(), arrays, strict=True)
        for axis, extent in zip(tensor.shape or (), array.shape, strict=True)
    }
    if "context" in definition.inputs:
        known["max_context"] = int(arrays[list(definition.inputs).index("context")].max())
    known = with_tokens(problem, known)
    return workload_at(problem, {axis: known[axis] for axis in get(problem.operator).dynamic_axes})
