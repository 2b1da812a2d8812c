"""Graphs built step by step, shapes along the way. Knows no torch."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kforge.importing.failures import NotDynamic, Unsupported
from kforge.operators.graph import AXIS, VIEWS, Extent, Given, Graph, GraphError, Op, Shape, Step, result_shape


@dataclass(frozen=True)
class Value:
    """What is given, or the outcome of a step. ``truth``: torch has it as bool, here it is 0 and 1."""

    name: str
    shape: Shape
    truth: bool = False


Operand = Value | float


@dataclass(frozen=True)
class _Choice:
    condition: Value
    low: float
    high: float


class Builder:
    """``make`` adds a step, or finds the same one; what nothing uses is left out in the end. Arithmetic of a choice
    between two numbers is a choice between two others: a mask that is made of another one loses nothing by rounding."""

    def __init__(self) -> None:
        self._given: list[Given] = []
        self._steps: list[Step] = []
        self._numbers: dict[float, Value] = {}
        self._values: dict[str, float] = {}  # of the numbers, by their names
        self._choices: dict[str, _Choice] = {}
        self._made: dict[tuple[object, ...], Value] = {}
        self._masks: set[str] = set()  # values that are 0 or 1 everywhere

    def give(self, given: Given) -> Value:
        self._given.append(given)
        return Value(given.name, given.shape)

    def number(self, value: float) -> Value:
        """A constant, rounded to float32 as torch's kernels round theirs."""
        try:
            rounded = _rounded(value)
        except OverflowError:
            raise Unsupported(f"the constant {value!r} is beyond float32's range") from None
        if math.isnan(rounded):
            raise Unsupported("it uses the constant NaN")
        if rounded not in self._numbers:
            made = self._add(Step(self._name(), Op.SCALAR, (), (), value=rounded))
            self._numbers[rounded], self._values[made.name] = made, rounded
        return self._numbers[rounded]

    def choose(self, condition: Value, low: float, high: float) -> Value:
        """``low`` where the condition holds, else ``high``."""
        made = self.make(Op.WHERE, condition, low, high)
        self._choices[made.name] = _Choice(condition, low, high)
        return made

    def value(self, operand: Operand | Extent) -> Value:
        """Raises NotDynamic for B as a number."""
        return operand if isinstance(operand, Value) else self.number(float(_number(operand)))

    def mask(self, operand: Operand) -> Value:
        """1 where it is not 0, a NaN too, and else 0."""
        x = self.value(operand)
        if x.name in self._masks:
            return x
        return self.make(Op.SUB, 1.0, self.make(Op.LESS_EQUAL, self.make(Op.ABS, x), 0.0))

    def make(self, op: Op, *operands: Operand, dims: Iterable[int] = (), bounds: tuple[int, int] = (0, 0),
             shape: Shape = ()) -> Value:
        """``shape``: of RESHAPE and BROADCAST; of all others it follows. Raises NotDynamic where only B stands in the
        way, Unsupported where the step is impossible."""
        values, dims = [self.value(operand) for operand in operands], tuple(dims)
        chosen = {self._choices[v.name].condition for v in values if v.name in self._choices}
        if len(chosen) == 1:
            (condition,) = chosen
            if op in VIEWS:
                choice = self._choices[values[0].name]
                seen = self.make(op, condition, dims=dims, bounds=bounds, shape=shape)
                return self.choose(seen, choice.low, choice.high)
            if (ends := self._ends(op, values)) is not None:
                return self.choose(condition, *ends)
        step = Step(self._name(), op, tuple(v.name for v in values), shape, dims=dims, bounds=bounds)
        key = (op, step.inputs, shape, step.dims, bounds)
        if key in self._made:
            return self._made[key]
        try:
            made = result_shape(step, [v.shape for v in values])
        except (GraphError, ValueError) as error:
            if any(AXIS in v.shape for v in values):
                raise NotDynamic(str(error)) from None
            raise Unsupported(str(error)) from None
        self._made[key] = self._add(Step(step.name, op, step.inputs, made, dims=step.dims, bounds=bounds))
        return self._made[key]

    def _ends(self, op: Op, values: list[Value]) -> tuple[float, float] | None:
        """What arithmetic of choices and numbers makes of either; None where it is not that, or leaves float32."""
        rule = _FOLDED.get(op)
        if rule is None or any(v.name not in self._choices and v.name not in self._values for v in values):
            return None
        both = [self._choices.get(v.name) or self._values[v.name] for v in values]
        try:
            low = _rounded(rule(*(one.low if isinstance(one, _Choice) else one for one in both)))
            high = _rounded(rule(*(one.high if isinstance(one, _Choice) else one for one in both)))
        except OverflowError:
            return None
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None

    def reshape(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.make(Op.RESHAPE, x, shape=shape)

    def broadcast(self, x: Value, shape: Shape) -> Value:
        return x if x.shape == shape else self.make(Op.BROADCAST, x, shape=shape)

    def permute(self, x: Value, dims: Iterable[int]) -> Value:
        order = tuple(dims)
        return x if order == tuple(range(len(x.shape))) else self.make(Op.PERMUTE, x, dims=order)

    def reduce(self, op: Op, x: Value, dims: Iterable[int] | int | None, keep: bool = False) -> Value:
        """Over ``dims``, all when None or empty; they go unless ``keep``."""
        over = axes(x, dims)
        if not over:
            return x
        made = self.make(op, x, dims=over)
        return made if keep else self.reshape(made, tuple(e for i, e in enumerate(x.shape) if i not in over))

    def graph(self, outputs: list[Value]) -> Graph:
        """Of what the outputs depend on; arguments that they don't are left out too."""
        needed = {value.name for value in outputs}
        steps = []
        for step in reversed(self._steps):
            if step.name in needed:
                steps.append(step)
                needed.update(step.inputs)
        given = tuple(g for g in self._given if g.name in needed)
        return Graph(given, tuple(reversed(steps)), tuple(value.name for value in outputs))

    def _name(self) -> str:
        return f"v{len(self._steps)}"

    def _add(self, step: Step) -> Value:
        self._steps.append(step)
        if self._is_mask(step):
            self._masks.add(step.name)
        return Value(step.name, step.shape)

    def _is_mask(self, step: Step) -> bool:
        """Whether it makes 0 and 1 alone, as far as that is seen at once."""
        if step.op in (Op.LESS, Op.LESS_EQUAL):
            return True
        if step.op is Op.SCALAR:
            return step.value in (0, 1)
        if step.op is Op.SUB:
            return step.inputs[0] == self._numbers.get(1.0, Value("", ())).name and step.inputs[1] in self._masks
        inputs = step.inputs[1:] if step.op is Op.WHERE else step.inputs
        return step.op in _OF_MASKS and self._masks.issuperset(inputs)


# Sums and products of two float32 values in float64 are rounded as if at once.
_FOLDED: dict[Op, Callable[..., float]] = {
    Op.ADD: operator.add, Op.SUB: operator.sub, Op.MUL: operator.mul, Op.NEG: operator.neg,
    Op.LESS: lambda x, y: float(x < y), Op.LESS_EQUAL: lambda x, y: float(x <= y),
}
_OF_MASKS = VIEWS | {Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.MAX, Op.MIN, Op.WHERE, Op.CONCAT}


def _rounded(value: float) -> float:
    """To float32. Raises OverflowError."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)


def axes(x: Value, dims: Iterable[int] | int | None) -> tuple[int, ...]:
    """Dimensions of ``x`` in order, counted from its beginning."""
    rank = len(x.shape)
    wanted = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return tuple(sorted({axis(x, dim) for dim in wanted})) if rank else ()


def axis(x: Value, dim: int) -> int:
    rank = max(len(x.shape), 1)
    if not -rank <= dim < rank:
        raise Unsupported(f"there is no dimension {dim} in the shape {x.shape}")
    return dim % rank


def count(x: Value, dims: Iterable[int] | int | None) -> int:
    """Elements along these dimensions. Raises NotDynamic where B is among them."""
    total = 1
    for dim in axes(x, dims):
        total *= fixed(x.shape[dim])
    return total


def _number(operand: float | Extent) -> float:
    if isinstance(operand, str):
        raise NotDynamic("the number of rows is an operand")
    return operand


def fixed(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise NotDynamic("the number of rows is a factor")
    return extent
