"""What an imported function computes, as data: a closed list of operations on float32 tensors.

The contract between the import, which writes such a graph inside the sandbox, the operator, whose reference walks it in
float64, and the generator, which makes kernels of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kforge.core.workload import stable_hash

AXIS = "B"  # the dynamic axis: the leading dimension of what is given, where the function is defined for any
Extent = int | str  # a number, or AXIS; a dimension is never a product with AXIS in it
Shape = tuple[Extent, ...]


class GraphError(ValueError):
    """A graph that breaks the rules below; the message names the step."""


class Kind(StrEnum):
    """What a tensor that is given is to the function."""

    ARGUMENT = "argument"  # of forward(): activations
    PARAMETER = "parameter"  # of the module: a weight


class Op(StrEnum):
    """The operations. Attributes in brackets; ``x``, ``y`` are inputs in order."""

    SCALAR = "scalar"  # [value]: a number, of shape ()
    # one input, elementwise
    NEG = "neg"
    ABS = "abs"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIPROCAL = "reciprocal"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    SIN = "sin"
    COS = "cos"
    SQUARE = "square"
    RELU = "relu"
    # two inputs, elementwise, broadcast as in numpy
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    POW = "pow"
    LESS = "less"  # x < y: 1 or 0
    LESS_EQUAL = "less_equal"
    # three inputs
    WHERE = "where"  # y where x is not 0, else z
    # reductions over [dims], ascending, which stay as 1
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    # [..., M, K] x [..., K, N], leading dimensions broadcast
    MATMUL = "matmul"
    # the same elements, seen otherwise
    PERMUTE = "permute"  # [dims]
    RESHAPE = "reshape"  # [shape]: AXIS, where there is one, stays the first extent
    BROADCAST = "broadcast"  # [shape]
    SLICE = "slice"  # [dim, start, stop], step 1, not of AXIS
    CONCAT = "concat"  # [dim]; any number of inputs


UNARY = frozenset({Op.NEG, Op.ABS, Op.EXP, Op.LOG, Op.SQRT, Op.RSQRT, Op.RECIPROCAL, Op.TANH, Op.SIGMOID, Op.ERF,
                   Op.SIN, Op.COS, Op.SQUARE, Op.RELU})
BINARY = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.POW, Op.LESS, Op.LESS_EQUAL})
ELEMENTWISE = UNARY | BINARY | {Op.WHERE}
REDUCTIONS = frozenset({Op.SUM, Op.MAX, Op.MIN})
VIEWS = frozenset({Op.PERMUTE, Op.RESHAPE, Op.BROADCAST, Op.SLICE})


@dataclass(frozen=True)
class Given:
    """A tensor that the caller gives, float32 and dense. ``spread``: standard deviation of the values that the original
    had, which timed calls are given too; ``mean`` likewise. ``positive``: none of them was below zero."""

    name: str
    shape: Shape
    kind: Kind
    mean: float = 0.0
    spread: float = 1.0
    positive: bool = False


@dataclass(frozen=True)
class Step:
    """One value made from earlier ones, which are named: what is given, or the outcome of a step."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    shape: Shape
    value: float = 0.0  # of SCALAR
    dims: tuple[int, ...] = ()  # of reductions, PERMUTE, SLICE and CONCAT (one), never negative
    bounds: tuple[int, int] = (0, 0)  # of SLICE: start and stop


@dataclass(frozen=True)
class Graph:
    """``outputs``: names of the values that it returns, one or more. Steps stand in an order of evaluation."""

    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Shape] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        shapes: dict[str, Shape] = {}
        values: tuple[Given | Step, ...] = (*self.given, *self.steps)
        for value in values:
            if value.name in shapes:
                raise GraphError(f"{value.name} is defined twice")
            if isinstance(value, Step):
                if missing := [name for name in value.inputs if name not in shapes]:
                    raise GraphError(f"{value.name} reads {missing[0]}, which stands nowhere above it")
                if (made := result_shape(value, [shapes[name] for name in value.inputs])) != value.shape:
                    raise GraphError(f"{value.name} = {value.op} is said to have the shape {value.shape}, not {made}")
            shapes[value.name] = value.shape
        if not self.outputs or (missing := [name for name in self.outputs if name not in shapes]):
            what = f"{missing[0]}, which it does not make" if self.outputs else "nothing"
            raise GraphError(f"it returns {what}")
        object.__setattr__(self, "shapes", shapes)

    @property
    def dynamic(self) -> bool:
        """Whether AXIS occurs."""
        return any(AXIS in value.shape for value in self.given)

    @property
    def hash(self) -> str:
        """A name of the function's identity, renaming of values aside. It begins with a letter: in a key, digits alone
        would be read as a number."""
        values: tuple[Given | Step, ...] = (*self.given, *self.steps)
        number = {value.name: i for i, value in enumerate(values)}
        digits = stable_hash([
            [[list(g.shape), g.kind.value] for g in self.given],
            [[s.op.value, [number[n] for n in s.inputs], list(s.shape), s.value, list(s.dims), list(s.bounds)]
             for s in self.steps],
            [number[n] for n in self.outputs],
        ], 15)
        return f"g{digits}"


def concrete(shape: Shape, batch: int) -> tuple[int, ...]:
    """The shape with ``batch`` for AXIS."""
    return tuple(batch if extent == AXIS else int(extent) for extent in shape)


def result_shape(step: Step, inputs: list[Shape]) -> Shape:
    """The shape of what a step makes of inputs of these shapes; for RESHAPE and BROADCAST the step's own where it is
    possible. Raises GraphError.
    """
    op, name = step.op, step.name
    wanted = {Op.SCALAR: 0, Op.WHERE: 3, Op.MATMUL: 2, Op.CONCAT: len(inputs)} | dict.fromkeys(BINARY, 2)
    if len(inputs) != wanted.get(op, 1) or (op is Op.CONCAT and not inputs):
        raise GraphError(f"{name} = {op} has {len(inputs)} inputs")
    if op is Op.SCALAR:
        return ()
    if op in ELEMENTWISE:
        return _broadcast(name, inputs)
    first = inputs[0]
    if any(not 0 <= dim < len(first) for dim in step.dims):
        raise GraphError(f"{name} = {op} names a dimension outside of {first}")
    if op in REDUCTIONS:
        if list(step.dims) != sorted(set(step.dims)) or not step.dims or any(first[dim] == AXIS for dim in step.dims):
            raise GraphError(f"{name} = {op} over the dimensions {step.dims} of {first}")
        return tuple(1 if i in step.dims else extent for i, extent in enumerate(first))
    if op is Op.MATMUL:
        a, b = inputs
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2] or a[-1] == AXIS:
            raise GraphError(f"{name} = matmul of {a} and {b}")
        return (*_broadcast(name, [a[:-2], b[:-2]]), a[-2], b[-1])
    if op is Op.PERMUTE:
        if sorted(step.dims) != list(range(len(first))):
            raise GraphError(f"{name} = permute {step.dims} of {first}")
        return tuple(first[dim] for dim in step.dims)
    if op is Op.SLICE:
        (dim,), (start, stop) = step.dims, step.bounds
        extent = first[dim]
        if not isinstance(extent, int) or not 0 <= start < stop <= extent:
            raise GraphError(f"{name} = slice {start}:{stop} of dimension {dim} of {first}")
        return (*first[:dim], stop - start, *first[dim + 1:])
    if op is Op.CONCAT:
        (dim,) = step.dims
        if any(len(shape) != len(first) for shape in inputs):
            raise GraphError(f"{name} = concat of {inputs}")
        rest = {(*shape[:dim], *shape[dim + 1:]) for shape in inputs}
        extents = [shape[dim] for shape in inputs]
        if len(rest) != 1 or not all(isinstance(extent, int) for extent in extents):
            raise GraphError(f"{name} = concat of {inputs} along {dim}")
        return (*first[:dim], sum(int(extent) for extent in extents), *first[dim + 1:])
    if op is Op.BROADCAST:
        if _broadcast(name, [first, step.shape]) != step.shape:
            raise GraphError(f"{name} = broadcast of {first} to {step.shape}")
        return step.shape
    if AXIS in first and (first[0] != AXIS or first.count(AXIS) > 1):
        raise GraphError(f"{name} = reshape of {first}: {AXIS} is not its first extent alone")
    kept = step.shape.count(AXIS) == (AXIS in first) == (step.shape[:1] == (AXIS,))
    if not kept or _count(first) != _count(step.shape):
        raise GraphError(f"{name} = reshape of {first} to {step.shape}")
    return step.shape


def _count(shape: Shape) -> int:
    return math.prod(extent for extent in shape if isinstance(extent, int))


def _broadcast(name: str, shapes: list[Shape]) -> Shape:
    made: list[Extent] = []
    for i in range(1, 1 + max(map(len, shapes))):
        extents = {shape[-i] for shape in shapes if len(shape) >= i} - {1}
        if len(extents) > 1:
            raise GraphError(f"{name}: shapes {' and '.join(map(str, shapes))} don't broadcast")
        made.append(extents.pop() if extents else 1)
    return tuple(reversed(made))
