"""A described kernel call as a custom operator of torch: its schema, its rule for fake tensors, and what is checked.

The description is what JSON can hold (``signature.Signature.document``):

    name, operator, static, schema
    tensors   in launch order: name, dtype, role ("in", "inout", "out"), shape: [axis, factor, offset] an extent, which
              is factor * axis + offset, or offset alone where the axis is ""
    explicit  dynamic axes that no shape tells, arguments behind the tensors
    dynamic   all dynamic axes, in the order of the launch
    scalars   [name, default], the last arguments

Exported packages carry this file as it is: it imports nothing of kforge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .indices import check
from .tensors import DTYPES, array, placed

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Launch:
    """One call of a kernel: tensors in launch order, as the ABI wants them."""

    axes: Mapping[str, int]
    tensors: Sequence[np.ndarray]
    ordered: Sequence[int]  # the axes in the order of the launch
    scalars: Sequence[float]


class Problem:
    """An operator with its static attributes."""

    def __init__(self, operator: str, static: Mapping[str, Any]) -> None:
        self.operator = operator
        self._static = static

    def int(self, name: str) -> int:
        return int(self._static[name])


class Caller:
    """Registers the operator ``NAMESPACE::NAME``, which torch takes once, and calls ``launch`` for each call of it."""

    def __init__(self, namespace: str, said: Mapping[str, Any], launch: Callable[[Launch], None]) -> None:
        self.name: str = said["name"]
        self.schema: str = said["schema"]
        self.tensors = said["tensors"]
        self.arguments = [t for t in self.tensors if t["role"] != "out"]
        self.explicit: Sequence[str] = said["explicit"]
        self.dynamic: Sequence[str] = said["dynamic"]
        self._results = [t for t in self.tensors if t["role"] == "out"]
        self._scalars: dict[str, float] = dict(said["scalars"])
        self._problem = Problem(said["operator"], said["static"])
        self._launch = launch
        changed = [t["name"] for t in self.arguments if t["role"] == "inout"]
        made = torch.library.custom_op(f"{namespace}::{self.name}", self._run, mutates_args=changed, schema=self.schema,
                                       device_types="cpu")
        made.register_fake(self._fake)
        self.op = getattr(getattr(torch.ops, namespace), self.name).default

    def _run(self, *values: Any, **named: Any) -> Any:
        """Raises ValueError for tensors that are not the operator's, before a kernel sees them."""
        call = self._parted(values, named)
        axes = self._axes(call)
        for argument, tensor in zip(self.arguments, call.tensors, strict=True):
            if list(tensor.shape) != (wanted := _shape(argument, axes)):
                raise ValueError(f"{argument['name']} has the shape {list(tensor.shape)}; wanted is {wanted}")
        called = all(axes[name] > 0 for name in self.dynamic)
        new = torch.empty if called else torch.zeros
        results = [new(_shape(r, axes), dtype=DTYPES[r["dtype"]]) for r in self._results]
        if called:
            pairs = list(zip(self.arguments, call.tensors, strict=True))
            check(self._problem, {a["name"]: array(t) for a, t in pairs if a["dtype"] == "i32"}, axes)
            used = [placed(t) for t in call.tensors]
            given, made = iter(used), iter(results)
            launched = [array(next(made if t["role"] == "out" else given)) for t in self.tensors]
            self._launch(Launch(axes, launched, [axes[name] for name in self.dynamic], call.scalars))
            for (argument, theirs), mine in zip(pairs, used, strict=True):
                if argument["role"] == "inout" and mine is not theirs:
                    theirs.copy_(mine)
        return _returned(results)

    def _fake(self, *values: Any, **named: Any) -> Any:
        call = self._parted(values, named)
        axes = self._axes(call)
        for argument, tensor in zip(self.arguments, call.tensors, strict=True):
            for extent, wanted in zip(tensor.shape, _shape(argument, axes), strict=True):
                torch._check(extent == wanted)
        made = [call.tensors[0].new_empty(_shape(r, axes), dtype=DTYPES[r["dtype"]]) for r in self._results]
        return _returned(made)

    def _parted(self, values: Sequence[Any], named: Mapping[str, Any]) -> _Call:
        names = [*(t["name"] for t in self.arguments), *self.explicit, *self._scalars]
        bound = {**self._scalars, **dict(zip(names, values, strict=False)), **named}
        ordered = [bound[name] for name in names]
        first, second = len(self.arguments), len(self.arguments) + len(self.explicit)
        return _Call(ordered[:first], ordered[first:second], ordered[second:])

    def _axes(self, call: _Call) -> dict[str, Any]:
        """From the first shapes that tell them; symbolic where the shapes are."""
        axes = dict(zip(self.explicit, call.explicit, strict=True))
        for argument, tensor in zip(self.arguments, call.tensors, strict=True):
            wanted = DTYPES[argument["dtype"]]
            if tensor.dtype is not wanted or tensor.dim() != len(argument["shape"]):
                raise ValueError(f"{argument['name']} is {tensor.dtype} of {tensor.dim()} axes; wanted is {wanted} of "
                                 f"{len(argument['shape'])}")
            for (axis, factor, offset), extent in zip(argument["shape"], tensor.shape, strict=True):
                if axis and axis not in axes:
                    axes[axis] = (extent - offset) // factor
        return axes


@dataclass(frozen=True)
class _Call:
    tensors: list[torch.Tensor]
    explicit: list[Any]
    scalars: list[float]


def _shape(tensor: Mapping[str, Any], axes: Mapping[str, Any]) -> list[Any]:
    return [factor * axes[axis] + offset if axis else offset for axis, factor, offset in tensor["shape"]]


def _returned(results: Sequence[torch.Tensor]) -> Any:
    """As a schema of so many results wants them."""
    return None if not results else results[0] if len(results) == 1 else tuple(results)
