"""How an operator of kforge is called with tensors: what is an argument, what is a result, and whose extents are whose.

Nothing here needs torch. Arguments are the tensors in launch order without pure outputs, then the dynamic axes that no
tensor's shape tells, then scalars; results are the pure outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kforge.core.workload import Problem, Workload
from kforge.operators import get
from kforge.operators.base import Role, TensorSpec

_SAMPLE = 48  # an axis while shapes are asked: a multiple of what extents are multiples of


@dataclass(frozen=True)
class Extent:
    """``factor * axis + offset``; without an axis, ``offset``."""

    axis: str
    factor: int
    offset: int

    def of(self, axes: Mapping[str, Any]) -> Any:
        """``axes`` may be symbolic."""
        return self.factor * axes[self.axis] + self.offset if self.axis else self.offset

    def axis_of(self, extent: Any) -> Any:
        """The axis of which this is the extent; for symbolic ones too."""
        return (extent - self.offset) // self.factor


@dataclass(frozen=True)
class Argument:
    """A tensor of the launch. ``role``: IN is read, INOUT is changed in place, OUT is a result."""

    spec: TensorSpec
    shape: tuple[Extent, ...]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def role(self) -> Role:
        return self.spec.role


@dataclass(frozen=True)
class Signature:
    """``tensors``: in launch order, outputs included. ``explicit``: dynamic axes that the caller names."""

    problem: Problem
    tensors: tuple[Argument, ...]
    dynamic: tuple[str, ...]  # in the order of kf_launch.axes
    explicit: tuple[str, ...]
    scalars: tuple[tuple[str, float], ...]  # with the values of timed calls, which are the defaults

    @classmethod
    def of(cls, problem: Problem) -> Signature:
        """Raises ValueError for a problem that its operator does not have."""
        operator = get(problem.operator)
        base = dict.fromkeys(operator.dynamic_axes, _SAMPLE)
        at = operator.tensors(Workload.of(problem, **base))
        moved = {
            axis: operator.tensors(Workload.of(problem, **{**base, axis: _SAMPLE + 1}))
            for axis in operator.dynamic_axes
        }
        tensors = tuple(
            Argument(spec, tuple(_extent(moved, i, j, extent) for j, extent in enumerate(spec.shape)))
            for i, spec in enumerate(at)
        )
        told = {e.axis for t in tensors if t.role is not Role.OUT for e in t.shape}
        explicit = tuple(axis for axis in operator.dynamic_axes if axis not in told)
        usual = operator.scalars(Workload.of(problem, **base))
        scalars = tuple(zip(operator.scalar_names, usual, strict=True))
        return cls(problem, tensors, operator.dynamic_axes, explicit, scalars)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        return tuple(t for t in self.tensors if t.role is not Role.OUT)

    @cached_property
    def results(self) -> tuple[Argument, ...]:
        return tuple(t for t in self.tensors if t.role is Role.OUT)

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """Arguments that a call changes."""
        return tuple(t.name for t in self.arguments if t.role is Role.INOUT)

    @property
    def schema(self) -> str:
        """In torch's language for schemas, without a name."""
        marks = iter("abcdefghij")
        parts = [f"Tensor({next(marks)}!) {t.name}" if t.role is Role.INOUT else f"Tensor {t.name}"
                 for t in self.arguments]
        parts += [f"SymInt {axis}" for axis in self.explicit]
        parts += [f"float {name}={value!r}" for name, value in self.scalars]
        returned = ", ".join("Tensor" for _ in self.results)
        return f"({', '.join(parts)}) -> {returned if len(self.results) == 1 else f'({returned})'}"

    def axes(self, shapes: Sequence[Sequence[Any]], explicit: Sequence[Any]) -> dict[str, Any]:
        """The dynamic axes of a call whose arguments have these shapes, which may be symbolic; unchecked."""
        found: dict[str, Any] = dict(zip(self.explicit, explicit, strict=True))
        for argument, shape in zip(self.arguments, shapes, strict=True):
            for extent, value in zip(argument.shape, shape, strict=True):
                if extent.axis and extent.axis not in found:
                    found[extent.axis] = extent.axis_of(value)
        return found


def _extent(moved: Mapping[str, Sequence[TensorSpec]], tensor: int, place: int, at: int) -> Extent:
    slopes = {axis: specs[tensor].shape[place] - at for axis, specs in moved.items()}
    varying = [axis for axis, slope in slopes.items() if slope]
    if not varying:
        return Extent("", 0, at)
    if len(varying) > 1:
        raise ValueError(f"an extent of tensor {tensor} depends on {', '.join(varying)}: no shape tells them apart")
    factor = slopes[varying[0]]
    return Extent(varying[0], factor, at - factor * _SAMPLE)
