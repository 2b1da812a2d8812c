"""What torch's elementwise operations are in a graph's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kforge.importing.builder import Builder, Operand, Value
from kforge.operators.graph import Op

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
Dims = Sequence[int] | int | None


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function of a builder and the operation's arguments under names such as ``add.Tensor``."""
    def registered(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function
    return registered


def plain(op: Op) -> Rule:
    return lambda b, *operands: b.make(op, *operands)


for _name, _op in {
    "neg": Op.NEG, "abs": Op.ABS, "exp": Op.EXP, "log": Op.LOG, "sqrt": Op.SQRT, "rsqrt": Op.RSQRT,
    "reciprocal": Op.RECIPROCAL, "tanh": Op.TANH, "sigmoid": Op.SIGMOID, "erf": Op.ERF, "sin": Op.SIN, "cos": Op.COS,
    "square": Op.SQUARE, "relu": Op.RELU, "maximum": Op.MAXIMUM, "minimum": Op.MINIMUM,
}.items():
    RULES[f"{_name}.default"] = plain(_op)
for _suffix in ("Tensor", "Scalar"):
    RULES[f"mul.{_suffix}"] = plain(Op.MUL)
    RULES[f"div.{_suffix}"] = plain(Op.DIV)
    RULES[f"lt.{_suffix}"] = plain(Op.LESS)
    RULES[f"le.{_suffix}"] = plain(Op.LESS_EQUAL)
    RULES[f"gt.{_suffix}"] = lambda b, x, y: b.make(Op.LESS, y, x)
    RULES[f"ge.{_suffix}"] = lambda b, x, y: b.make(Op.LESS_EQUAL, y, x)
for _kind in ("logical_and.default", "bitwise_and.Tensor"):  # bitwise: of bools, whole numbers are refused
    RULES[_kind] = lambda b, x, y: b.make(Op.MUL, b.mask(x), b.mask(y))
for _kind in ("logical_or.default", "bitwise_or.Tensor"):
    RULES[_kind] = lambda b, x, y: b.make(Op.MAXIMUM, b.mask(x), b.mask(y))


def times(b: Builder, x: Operand, factor: float) -> Operand:
    if factor == 1:
        return x
    return b.make(Op.MUL, x, factor) if isinstance(x, Value) else x * factor


@rule("add.Tensor", "add.Scalar")
def _add(b: Builder, x: Value, y: Operand, alpha: float = 1) -> Value:
    return b.make(Op.ADD, x, times(b, y, alpha))


@rule("sub.Tensor", "sub.Scalar")
def _sub(b: Builder, x: Value, y: Operand, alpha: float = 1) -> Value:
    return b.make(Op.SUB, x, times(b, y, alpha))


@rule("rsub.Tensor", "rsub.Scalar")
def _rsub(b: Builder, x: Value, y: Operand, alpha: float = 1) -> Value:
    return b.make(Op.SUB, y, times(b, x, alpha))


@rule("eq.Tensor", "eq.Scalar")
def _equal(b: Builder, x: Value, y: Operand) -> Value:
    return b.make(Op.MUL, b.make(Op.LESS_EQUAL, x, y), b.make(Op.LESS_EQUAL, y, x))


@rule("ne.Tensor", "ne.Scalar")
def _unequal(b: Builder, x: Value, y: Operand) -> Value:
    return b.make(Op.SUB, 1.0, _equal(b, x, y))


@rule("logical_not.default", "bitwise_not.default")
def _not(b: Builder, x: Value) -> Value:
    return b.make(Op.LESS_EQUAL, b.make(Op.ABS, x), 0.0)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(b: Builder, condition: Value, x: Operand, y: Operand) -> Value:
    return b.make(Op.WHERE, condition, x, y)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    return b.make(Op.WHERE, mask, value, x)


@rule("clamp.default", "clamp.Tensor")
def _clamp(b: Builder, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    if min is not None:
        x = b.make(Op.MAXIMUM, x, min)
    return x if max is None else b.make(Op.MINIMUM, x, max)


RULES["hardtanh.default"] = lambda b, x, low=-1.0, high=1.0: _clamp(b, x, low, high)
RULES["relu6.default"] = lambda b, x: _clamp(b, x, 0.0, 6.0)
RULES["clamp_min.default"] = _clamp
RULES["clamp_max.default"] = lambda b, x, high: _clamp(b, x, None, high)


@rule("pow.Tensor_Scalar")
def _power(b: Builder, x: Value, exponent: float) -> Value:
    if exponent == 0:
        return b.broadcast(b.number(1.0), x.shape)
    if exponent == int(exponent) and abs(exponent) <= 8:
        made = _whole_power(b, x, abs(int(exponent)))
        return made if exponent > 0 else b.make(Op.RECIPROCAL, made)
    if exponent in (0.5, -0.5):
        return b.make(Op.SQRT if exponent > 0 else Op.RSQRT, x)
    return b.make(Op.POW, x, exponent)


def _whole_power(b: Builder, x: Value, n: int) -> Value:
    if n == 1:
        return x
    half = b.make(Op.SQUARE, _whole_power(b, x, n // 2))
    return b.make(Op.MUL, half, x) if n % 2 else half


RULES["pow.Tensor_Tensor"] = RULES["pow.Scalar"] = plain(Op.POW)
RULES["exp2.default"] = lambda b, x: b.make(Op.EXP, b.make(Op.MUL, x, math.log(2)))
RULES["expm1.default"] = lambda b, x: b.make(Op.SUB, b.make(Op.EXP, x), 1.0)
RULES["log1p.default"] = lambda b, x: b.make(Op.LOG, b.make(Op.ADD, x, 1.0))
RULES["log2.default"] = lambda b, x: b.make(Op.MUL, b.make(Op.LOG, x), 1 / math.log(2))
RULES["log10.default"] = lambda b, x: b.make(Op.MUL, b.make(Op.LOG, x), 1 / math.log(10))
RULES["silu.default"] = lambda b, x: b.make(Op.MUL, x, b.make(Op.SIGMOID, x))
RULES["sign.default"] = lambda b, x: b.make(Op.SUB, b.make(Op.LESS, 0.0, x), b.make(Op.LESS, x, 0.0))


@rule("gelu.default")
def _gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        inner = b.make(Op.ERF, b.make(Op.MUL, x, math.sqrt(0.5)))
    else:
        cubed = b.make(Op.ADD, x, b.make(Op.MUL, _whole_power(b, x, 3), 0.044715))
        inner = b.make(Op.TANH, b.make(Op.MUL, cubed, math.sqrt(2 / math.pi)))
    return b.make(Op.MUL, b.make(Op.MUL, x, 0.5), b.make(Op.ADD, inner, 1.0))


@rule("leaky_relu.default")
def _leaky_relu(b: Builder, x: Value, slope: float = 0.01) -> Value:
    return b.make(Op.WHERE, b.make(Op.LESS, 0.0, x), x, b.make(Op.MUL, x, slope))


@rule("elu.default")
def _elu(b: Builder, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    below = b.make(Op.SUB, b.make(Op.EXP, b.make(Op.MINIMUM, times(b, x, input_scale), 0.0)), 1.0)
    return b.make(Op.WHERE, b.make(Op.LESS, 0.0, x), times(b, x, scale), times(b, below, alpha * scale))


@rule("softplus.default")
def _softplus(b: Builder, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = b.value(times(b, x, beta))
    grown = b.make(Op.LOG, b.make(Op.ADD, b.make(Op.EXP, b.make(Op.MINIMUM, scaled, threshold)), 1.0))
    return b.make(Op.WHERE, b.make(Op.LESS, threshold, scaled), x, times(b, grown, 1 / beta))


RULES["mish.default"] = lambda b, x: b.make(Op.MUL, x, b.make(Op.TANH, _softplus(b, x)))
RULES["hardsigmoid.default"] = lambda b, x: b.make(Op.DIV, _clamp(b, b.make(Op.ADD, x, 3.0), 0.0, 6.0), 6.0)
RULES["hardswish.default"] = lambda b, x: b.make(Op.MUL, x, RULES["hardsigmoid.default"](b, x))


@rule("addcmul.default")
def _addcmul(b: Builder, x: Value, y: Value, z: Value, value: float = 1) -> Value:
    return b.make(Op.ADD, x, times(b, b.make(Op.MUL, y, z), value))


@rule("addcdiv.default")
def _addcdiv(b: Builder, x: Value, y: Value, z: Value, value: float = 1) -> Value:
    return b.make(Op.ADD, x, times(b, b.make(Op.DIV, y, z), value))
