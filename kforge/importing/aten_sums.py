"""What torch's reductions, norms and products of matrices are in a graph's operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kforge.importing.aten import RULES, Dims, plain, rule, times
from kforge.importing.builder import Builder, Value, axes, axis, count, fixed
from kforge.importing.failures import Unsupported
from kforge.operators.graph import Op, Shape


def _total(b: Builder, x: Value, dims: Dims, keep: bool) -> Value:
    return b.reduce(Op.SUM, x, dims, keep)


@rule("sum.default", "sum.dim_IntList")
def _sum(b: Builder, x: Value, dims: Dims = None, keep: bool = False, dtype: object = None) -> Value:
    return _total(b, x, dims, keep)


@rule("mean.default", "mean.dim")
def _mean(b: Builder, x: Value, dims: Dims = None, keep: bool = False, dtype: object = None) -> Value:
    return b.make(Op.DIV, _total(b, x, dims, keep), float(count(x, dims)))


@rule("amax.default")
def _amax(b: Builder, x: Value, dims: Dims = None, keep: bool = False) -> Value:
    return b.reduce(Op.MAX, x, dims, keep)


@rule("amin.default")
def _amin(b: Builder, x: Value, dims: Dims = None, keep: bool = False) -> Value:
    return b.reduce(Op.MIN, x, dims, keep)


RULES["max.default"], RULES["min.default"] = _amax, _amin
RULES["max.other"], RULES["min.other"] = plain(Op.MAXIMUM), plain(Op.MINIMUM)
RULES["max.dim"] = lambda b, x, dim, keep=False: (_amax(b, x, dim, keep), None)  # positions are no float32
RULES["min.dim"] = lambda b, x, dim, keep=False: (_amin(b, x, dim, keep), None)


def _variance(b: Builder, x: Value, dims: Dims, correction: float | None, keep: bool) -> Value:
    n = count(x, dims) - (1 if correction is None else correction)
    if n <= 0:
        raise Unsupported("it takes a variance of a single value")
    centred = b.make(Op.SUB, x, _mean(b, x, dims, True))
    return b.make(Op.DIV, _total(b, b.make(Op.SQUARE, centred), dims, keep), float(n))


@rule("var.correction")
def _var(b: Builder, x: Value, dims: Dims = None, correction: float | None = None, keepdim: bool = False) -> Value:
    return _variance(b, x, dims, correction, keepdim)


@rule("std.correction")
def _std(b: Builder, x: Value, dims: Dims = None, correction: float | None = None, keepdim: bool = False) -> Value:
    return b.make(Op.SQRT, _variance(b, x, dims, correction, keepdim))


@rule("var_mean.correction")
def _var_mean(b: Builder, x: Value, dims: Dims = None, correction: float | None = None,
              keepdim: bool = False) -> tuple[Value, Value]:
    return _variance(b, x, dims, correction, keepdim), _mean(b, x, dims, keepdim)


@rule("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def _norm(b: Builder, x: Value, order: float | None = 2, dims: Dims = None, keep: bool = False,
          dtype: object = None) -> Value:
    if order in (2, None):
        return b.make(Op.SQRT, _total(b, b.make(Op.SQUARE, x), dims, keep))
    if order == 1:
        return _total(b, b.make(Op.ABS, x), dims, keep)
    if order == math.inf:
        return _amax(b, b.make(Op.ABS, x), dims, keep)
    raise Unsupported(f"it takes a norm of order {order}; those of 1, 2 and infinity can be imported")


@rule("_softmax.default", "softmax.int")
def _softmax(b: Builder, x: Value, dim: int, dtype: object = None) -> Value:
    grown = b.make(Op.EXP, b.make(Op.SUB, x, b.reduce(Op.MAX, x, dim, True)))
    return b.make(Op.DIV, grown, _total(b, grown, dim, True))


@rule("_log_softmax.default", "log_softmax.int")
def _log_softmax(b: Builder, x: Value, dim: int, dtype: object = None) -> Value:
    shifted = b.make(Op.SUB, x, b.reduce(Op.MAX, x, dim, True))
    return b.make(Op.SUB, shifted, b.make(Op.LOG, _total(b, b.make(Op.EXP, shifted), dim, True)))


@rule("logsumexp.default")
def _logsumexp(b: Builder, x: Value, dims: Dims, keep: bool = False) -> Value:
    largest = b.reduce(Op.MAX, x, dims, True)
    total = _total(b, b.make(Op.EXP, b.make(Op.SUB, x, largest)), dims, True)
    made = b.make(Op.ADD, b.make(Op.LOG, total), largest)
    return made if keep else b.reshape(made, tuple(e for i, e in enumerate(x.shape) if i not in axes(x, dims)))


def _normalised(b: Builder, x: Value, dims: Dims, eps: float) -> tuple[Value, Value, Value]:
    mean = _mean(b, x, dims, True)
    centred = b.make(Op.SUB, x, mean)
    variance = b.make(Op.DIV, _total(b, b.make(Op.SQUARE, centred), dims, True), float(count(x, dims)))
    inverse = b.make(Op.RSQRT, b.make(Op.ADD, variance, eps))
    return b.make(Op.MUL, centred, inverse), mean, inverse


def _affine(b: Builder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    x = x if weight is None else b.make(Op.MUL, x, weight)
    return x if bias is None else b.make(Op.ADD, x, bias)


@rule("native_layer_norm.default")
def _layer_norm(b: Builder, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None,
                eps: float) -> tuple[Value, Value, Value]:
    rank = len(x.shape)
    made, mean, inverse = _normalised(b, x, range(rank - len(shape), rank), eps)
    return _affine(b, made, weight, bias), mean, inverse


@rule("native_group_norm.default")
def _group_norm(b: Builder, x: Value, weight: Value | None, bias: Value | None, n: object, c: int, hw: object,
                groups: int, eps: float) -> tuple[Value, Value, Value]:
    whole = math.prod(fixed(e) for e in x.shape[1:])
    made, mean, inverse = _normalised(b, b.reshape(x, (x.shape[0], groups, whole // groups)), 2, eps)
    channels: Shape = (c, *[1] * (len(x.shape) - 2))
    sides = [None if side is None else b.reshape(side, channels) for side in (weight, bias)]
    return _affine(b, b.reshape(made, x.shape), sides[0], sides[1]), mean, inverse


@rule("_native_batch_norm_legit_no_training.default")
def _batch_norm(b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value,
                momentum: float, eps: float) -> tuple[Value, Value, Value]:
    channels: Shape = (x.shape[1], *[1] * (len(x.shape) - 2))

    def side(value: Value | None) -> Value | None:
        return None if value is None else b.reshape(value, channels)

    inverse = b.make(Op.RSQRT, b.make(Op.ADD, b.reshape(variance, channels), eps))
    made = b.make(Op.MUL, b.make(Op.SUB, x, b.reshape(mean, channels)), inverse)
    return _affine(b, made, side(weight), side(bias)), mean, inverse


def transposed(b: Builder, x: Value, first: int = -2, second: int = -1) -> Value:
    order = list(range(len(x.shape)))
    i, j = axis(x, first), axis(x, second)
    order[i], order[j] = order[j], order[i]
    return b.permute(x, order)


@rule("mm.default", "bmm.default")
def _product(b: Builder, x: Value, y: Value) -> Value:
    return b.make(Op.MATMUL, x, y)


@rule("matmul.default", "dot.default", "mv.default")
def matmul(b: Builder, x: Value, y: Value) -> Value:
    """Vectors become a row or a column, which goes again."""
    row, column = len(x.shape) == 1, len(y.shape) == 1
    made = b.make(Op.MATMUL, b.reshape(x, (1, *x.shape)) if row else x, b.reshape(y, (*y.shape, 1)) if column else y)
    shape = made.shape[:-1] if column else made.shape
    return b.reshape(made, (*shape[:len(shape) - (1 if column else 2)], *shape[len(shape) - (0 if column else 1):])
                     if row else shape)


@rule("linear.default")
def _linear(b: Builder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    made = matmul(b, x, transposed(b, weight) if len(weight.shape) == 2 else weight)
    return made if bias is None else b.make(Op.ADD, made, bias)


@rule("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(b: Builder, bias: Value, x: Value, y: Value, beta: float = 1, alpha: float = 1) -> Value:
    made = times(b, matmul(b, x, y), alpha)
    return b.value(made) if beta == 0 else b.make(Op.ADD, times(b, bias, beta), made)


@rule("scaled_dot_product_attention.default")
def _attention(b: Builder, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0,
               causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Value:
    if causal or enable_gqa:
        raise Unsupported("it uses causal or grouped attention, which no graph can say")
    if dropout != 0:
        raise Unsupported("it drops values at random")
    factor = scale if scale is not None else 1 / math.sqrt(fixed(q.shape[-1]))
    scores = b.make(Op.MUL, b.make(Op.MATMUL, q, transposed(b, k)), factor)
    if mask is not None:
        scores = b.make(Op.WHERE, mask, scores, -math.inf) if mask.truth else b.make(Op.ADD, scores, mask)
    return b.make(Op.MATMUL, _softmax(b, scores, -1), v)
