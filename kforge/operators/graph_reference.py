"""The bound reference of an imported function: its graph walked in float64, errors along with the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kforge.operators import running_error as rules
from kforge.operators.base import Bound
from kforge.operators.graph import Graph, Op, Step, concrete
from kforge.operators.numerics import ETA, sum_error
from kforge.operators.running_error import FACTOR, Approx, settled

_UNARY: dict[Op, Callable[[Approx], Approx]] = {
    Op.NEG: rules.negate,
    Op.ABS: rules.absolute,
    Op.EXP: rules.exponential,
    Op.LOG: rules.logarithm,
    Op.SQRT: rules.square_root,
    Op.RSQRT: rules.inverse_root,
    Op.RECIPROCAL: rules.reciprocal,
    Op.TANH: rules.tangent,
    Op.SIGMOID: rules.logistic,
    Op.ERF: rules.error_function,
    Op.SIN: lambda a: rules.wave(a, np.sin),
    Op.COS: lambda a: rules.wave(a, np.cos),
    Op.SQUARE: rules.square,
    Op.RELU: rules.relu,
}
_BINARY: dict[Op, Callable[[Approx, Approx], Approx]] = {
    Op.ADD: rules.add,
    Op.SUB: lambda a, b: rules.add(a, rules.negate(b)),
    Op.MUL: rules.multiply,
    Op.DIV: rules.divide,
    Op.MAXIMUM: rules.maximum,
    Op.MINIMUM: lambda a, b: rules.maximum(a, b, -1.0),
    Op.POW: rules.power,
    Op.LESS: rules.less,
    Op.LESS_EQUAL: lambda a, b: rules.less(a, b, equal=True),
}


def references(graph: Graph, inputs: Mapping[str, np.ndarray], batch: int) -> list[Bound]:
    """Of each output in order, from float32 inputs by name. A product of matrices costs up to four of float64."""
    found = walk(graph, inputs, batch)
    return [_bound(found[name], concrete(graph.shapes[name], batch)) for name in graph.outputs]


def walk(graph: Graph, inputs: Mapping[str, np.ndarray], batch: int) -> dict[str, Approx]:
    """The outputs by name; other values are dropped after their last use."""
    last = {name: i for i, step in enumerate(graph.steps) for name in step.inputs}
    kept = set(graph.outputs)
    values = {given.name: Approx.exact(inputs[given.name]) for given in graph.given}
    with np.errstate(all="ignore"):
        for i, step in enumerate(graph.steps):
            values[step.name] = _apply(step, [values[name] for name in step.inputs], batch)
            for name in {*step.inputs, step.name} - kept:
                if last.get(name, i) <= i:
                    values.pop(name, None)
    return {name: values[name] for name in graph.outputs}


def _bound(made: Approx, shape: tuple[int, ...]) -> Bound:
    value, error, free = (np.broadcast_to(array, shape) for array in (made.value, made.error, made.free))
    return Bound(np.array(value, order="C"), FACTOR * error, np.array(free) if free.any() else None)


def _apply(step: Step, operands: list[Approx], batch: int) -> Approx:
    op = step.op
    if op in _UNARY:
        return _UNARY[op](operands[0])
    if op in _BINARY:
        return _BINARY[op](operands[0], operands[1])
    shape = concrete(step.shape, batch)
    match op:
        case Op.SCALAR:
            return Approx.exact(np.array(step.value))
        case Op.WHERE:
            return rules.where(operands[0], operands[1], operands[2])
        case Op.SUM:
            return _sum(operands[0], step.dims)
        case Op.MAX:
            return _largest(operands[0], step.dims, 1.0)
        case Op.MIN:
            return _largest(operands[0], step.dims, -1.0)
        case Op.MATMUL:
            return _matmul(operands[0], operands[1])
        case Op.PERMUTE:
            return operands[0].map(lambda array: array.transpose(step.dims))
        case Op.RESHAPE:
            return operands[0].map(lambda array: array.reshape(shape))
        case Op.BROADCAST:
            return operands[0].map(lambda array: np.broadcast_to(array, shape))
        case Op.SLICE:
            place = (*[slice(None)] * step.dims[0], slice(*step.bounds))
            return operands[0].map(lambda array: array[place])
        case Op.CONCAT:
            return _concat(operands, step.dims[0])
    raise AssertionError(f"no rule for {op}")


def _sum(a: Approx, dims: tuple[int, ...]) -> Approx:
    scale = a.scale.sum(axis=dims, keepdims=True)
    terms = np.count_nonzero(a.scale, axis=dims, keepdims=True)
    error = a.error.sum(axis=dims, keepdims=True) + np.where(terms > 1, sum_error(terms) / 4, 0.0) * scale
    low = a.low * (a.value.size // max(scale.size, 1)) if a.low > -np.inf else a.low
    return _reduced(a, a.value.sum(axis=dims, keepdims=True), error, scale, low, dims)


def _reduced(a: Approx, value: np.ndarray, error: np.ndarray, scale: np.ndarray, low: float,
             dims: tuple[int, ...]) -> Approx:
    """The rules for what is not finite, where any of the terms is."""
    if a.usual:
        return settled(value, error, scale, low, ())
    infinite, free, nan = (mask.any(axis=dims, keepdims=True) for mask in (np.isinf(a.value), a.free, a.nan))
    nothing = np.zeros_like(value)
    odd = Approx(np.where(nan, np.nan, np.where(infinite, np.inf, 0.0)), np.where(free, np.inf, 0.0), nothing)
    return settled(value, error, scale, low, (odd,))


def _largest(a: Approx, dims: tuple[int, ...], sign: float) -> Approx:
    """``sign`` -1: the least."""
    value = sign * (sign * a.value).max(axis=dims, keepdims=True)
    certain = (sign * a.value - a.error).max(axis=dims, keepdims=True)
    possible = sign * a.value + a.error >= certain
    error = np.where(possible, a.error, 0.0).max(axis=dims, keepdims=True)
    scale = np.where(possible, a.scale, 0.0).max(axis=dims, keepdims=True)
    unknown = (a.nan | a.free).any(axis=dims, keepdims=True)
    return rules.cleaned(value, np.where(unknown, np.inf, error), scale, a.low)


def _matmul(a: Approx, b: Approx) -> Approx:
    inner = a.value.shape[-1]
    value, scale = a.value @ b.value, a.scale @ b.scale
    error = sum_error(inner) / 4 * scale + inner * ETA
    finite_a, finite_b = _finite(a), _finite(b)
    if a.error.any():
        error = error + finite_a.error @ (np.abs(finite_b.value) + finite_b.error)
    if b.error.any():
        error = error + np.abs(finite_a.value) @ finite_b.error
    if a.usual and b.usual:
        return settled(value, error, scale, rules.UNBOUNDED, ())
    odd = [_odd(a, -1, value), _odd(b, -2, value)]
    open_infinity = np.logical_or(_meets(np.isinf(a.value), _open(b)), _meets(_open(a), np.isinf(b.value)))
    return settled(value, error, scale, rules.UNBOUNDED, tuple(odd), sure=np.logical_not(open_infinity))


def _finite(a: Approx) -> Approx:
    """With zeros for what is not finite or free."""
    if a.usual:
        return a
    return Approx(np.where(np.isfinite(a.value), a.value, 0.0), np.where(a.free, 0.0, a.error), a.scale)


def _odd(a: Approx, axis: int, like: np.ndarray) -> Approx:
    """What stands in a row (axis -1) or a column (-2) of a factor, for every element of the product."""
    infinite, free, nan = (mask.any(axis=axis, keepdims=True) for mask in (np.isinf(a.value), a.free, a.nan))
    value = np.where(nan, np.nan, np.where(infinite, np.inf, 0.0))
    return Approx(np.broadcast_to(value, like.shape), np.broadcast_to(np.where(free, np.inf, 0.0), like.shape),
                  np.zeros_like(like))


def _open(a: Approx) -> np.ndarray:
    """Where the sign is not known: an infinity times it is anything."""
    return (np.abs(a.value) <= a.error) & (a.error > 0)


def _meets(a: np.ndarray, b: np.ndarray) -> np.ndarray | bool:
    """[..., M, N]: whether there is a k with both a[..., M, k] and b[..., k, N]."""
    if not a.any() or not b.any():
        return False
    return a.astype(np.float32) @ b.astype(np.float32) > 0


def _concat(operands: list[Approx], dim: int) -> Approx:
    def joined(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays, axis=dim)

    return Approx(joined([a.value for a in operands]), joined([a.error for a in operands]),
                  joined([a.scale for a in operands]), min(a.low for a in operands))
