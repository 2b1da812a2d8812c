"""The error analysis: no float32 evaluation leaves its bound, wrong ones do, and what is not finite follows IEEE."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from kforge.core.dtypes import DType
from kforge.harness.values import Mismatch, beyond_bound
from kforge.operators.base import Bound
from kforge.operators.erf import erf
from kforge.operators.graph import Given, Graph, Kind, Op, Step
from kforge.operators.graph_reference import references

RNG = np.random.default_rng(4)
F32 = np.float32
UNARY: dict[Op, Callable[[np.ndarray], np.ndarray]] = {
    Op.NEG: np.negative, Op.ABS: np.abs, Op.EXP: np.exp, Op.LOG: np.log, Op.SQRT: np.sqrt,
    Op.RSQRT: lambda x: F32(1) / np.sqrt(x), Op.RECIPROCAL: lambda x: F32(1) / x, Op.TANH: np.tanh,
    Op.SIGMOID: lambda x: F32(1) / (F32(1) + np.exp(-x)), Op.SIN: np.sin, Op.COS: np.cos, Op.SQUARE: np.square,
    Op.ERF: lambda x: np.vectorize(math.erf)(x).astype(F32), Op.RELU: lambda x: np.maximum(x, F32(0)),
}


def of(*steps: Step, **inputs: np.ndarray) -> Bound:
    given = tuple(Given(name, value.shape, Kind.ARGUMENT) for name, value in inputs.items())
    return references(Graph(given, steps, (steps[-1].name,)), inputs, 1)[0]


def held(bound: Bound, value: np.ndarray) -> float | Mismatch:
    with np.errstate(all="ignore"):
        return beyond_bound("out", DType.F32, np.asarray(value, F32), bound)


def values(n: int = 2000) -> np.ndarray:
    special = [0.0, -0.0, 1.0, -1.0, 1e-40, 1e-30, 88.0, -88.0, -103.0, 3e38, -3e38, np.inf, -np.inf, np.nan]
    drawn = RNG.standard_normal(n) * 10.0 ** RNG.integers(-6, 3, n)
    return np.concatenate([drawn, special]).astype(F32)


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_a_function_in_float32_is_within_its_bound_and_a_thousandth_off_is_not(op: Op) -> None:
    x = values()
    bound = of(Step("y", op, ("x",), x.shape), x=x)
    with np.errstate(all="ignore"):
        right = UNARY[op](x)
    assert not isinstance(held(bound, right), Mismatch)
    decided = np.isfinite(bound.reference) & (np.abs(bound.reference) > 1e-3) & (np.abs(x) < 10)
    decided &= True if bound.free is None else ~bound.free
    wrong = np.where(decided, right * F32(1.001), right)
    with np.errstate(invalid="ignore"):
        share = np.mean(np.abs(wrong - bound.reference)[decided] > bound.bound[decided])
    assert share > 0.99


def test_erf_is_exact_in_float64() -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), [1e-300, 1e-9, -1e-9]])
    exact = np.array([math.erf(v) for v in x])
    assert np.max(np.abs(erf(x) - exact) / np.maximum(np.abs(exact), 1e-300)) < 1e-15


def softmax(shape: tuple[int, int]) -> tuple[Step, ...]:
    row = (shape[0], 1)
    return (Step("m", Op.MAX, ("x",), row, dims=(1,)), Step("d", Op.SUB, ("x", "m"), shape),
            Step("e", Op.EXP, ("d",), shape), Step("s", Op.SUM, ("e",), row, dims=(1,)),
            Step("y", Op.DIV, ("e", "s"), shape))


def online(x: np.ndarray, block: int, terms: int) -> np.ndarray:
    """Softmax in one pass over blocks, as kernels do it, all in float32; ``terms`` of each row are summed."""
    m, total = np.full((len(x), 1), -np.inf, F32), np.zeros((len(x), 1), F32)
    for start in range(0, terms, block):
        part = x[:, start:min(start + block, terms)]
        new = np.maximum(m, part.max(1, keepdims=True))
        total = total * np.exp(m - new) + np.exp(part - new).sum(1, keepdims=True, dtype=F32)
        m = new
    return np.exp(x - m) * (F32(1) / total)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1000.0])
def test_softmax_in_another_order_is_right_and_without_one_term_is_not(scale: float) -> None:
    x = (RNG.standard_normal((7, 500)) * scale).astype(F32)
    bound = of(*softmax(x.shape), x=x)
    assert bound.free is None
    for block in (1, 16, 77):
        assert not isinstance(held(bound, online(x, block, 500)), Mismatch)
    if scale <= 1:  # beyond, a single term need not matter
        assert isinstance(held(bound, online(x, 16, 499)), Mismatch)


def test_a_norm_by_another_formula_is_right_and_with_another_divisor_is_not() -> None:
    n = 300
    x = (RNG.standard_normal((6, n)) * 3 + 1).astype(F32)
    count, eps = Step("n", Op.SCALAR, (), (), value=float(n)), Step("eps", Op.SCALAR, (), (), value=1e-5)
    steps = (count, eps, Step("s", Op.SUM, ("x",), (6, 1), dims=(1,)), Step("m", Op.DIV, ("s", "n"), (6, 1)),
             Step("c", Op.SUB, ("x", "m"), x.shape), Step("q", Op.SQUARE, ("c",), x.shape),
             Step("t", Op.SUM, ("q",), (6, 1), dims=(1,)), Step("v", Op.DIV, ("t", "n"), (6, 1)),
             Step("w", Op.ADD, ("v", "eps"), (6, 1)), Step("r", Op.RSQRT, ("w",), (6, 1)),
             Step("y", Op.MUL, ("c", "r"), x.shape))
    bound = of(*steps, x=x)
    mean = x.sum(1, keepdims=True, dtype=F32) * F32(1 / n)
    inverse = F32(1) / np.sqrt(np.square(x - mean).mean(1, keepdims=True, dtype=F32) + F32(1e-5))
    assert not isinstance(held(bound, x * inverse - mean * inverse), Mismatch)  # the difference comes last
    assert isinstance(held(bound, (x - mean) * inverse * F32(math.sqrt((n - 1) / n))), Mismatch)
    assert isinstance(held(bound, (x - mean * F32(1.001)) * inverse), Mismatch)


@pytest.mark.parametrize("k", [1, 64, 1000])
def test_a_product_in_any_order_is_right_and_without_one_term_is_not(k: int) -> None:
    a, b = RNG.standard_normal((9, k)).astype(F32), RNG.standard_normal((k, 11)).astype(F32)
    bound = of(Step("y", Op.MATMUL, ("a", "b"), (9, 11)), a=a, b=b)
    in_order = np.zeros((9, 11), F32)
    for i in range(k):
        in_order += a[:, i:i + 1] * b[i:i + 1]
    assert not isinstance(held(bound, in_order), Mismatch)
    assert not isinstance(held(bound, a[:, ::-1] @ b[::-1]), Mismatch)
    assert isinstance(held(bound, in_order - a[:, -1:] * b[-1:]), Mismatch)


def test_errors_pass_through_a_second_product() -> None:
    a, b, c = (RNG.standard_normal(s).astype(F32) for s in ((5, 200), (200, 80), (80, 6)))
    bound = of(Step("p", Op.MATMUL, ("a", "b"), (5, 80)), Step("y", Op.MATMUL, ("p", "c"), (5, 6)), a=a, b=b, c=c)
    alone = of(Step("y", Op.MATMUL, ("p", "c"), (5, 6)), p=(a @ b), c=c)
    assert not isinstance(held(bound, (a @ b) @ c), Mismatch)
    assert not isinstance(held(bound, a @ (b @ c)), Mismatch)
    assert (bound.bound > alone.bound).all() and (bound.bound < 1e-3 * np.abs(bound.reference).max()).all()


def test_where_a_comparison_is_open_both_sides_are_right() -> None:
    a, b = np.array([1.0, 1.0, 2.0], F32), np.array([1e-8, 1.0, -3.0], F32)
    total, one, big = (Step("t", Op.ADD, ("a", "b"), (3,)), Step("one", Op.SCALAR, (), (), value=1.0),
                       Step("big", Op.SCALAR, (), (), value=100.0))
    bound = of(total, one, big, Step("c", Op.LESS, ("one", "t"), (3,)), Step("y", Op.WHERE, ("c", "big", "t"), (3,)),
               a=a, b=b)
    assert not isinstance(held(bound, np.array([100.0, 100.0, -1.0])), Mismatch)
    assert not isinstance(held(bound, np.array([1.0, 100.0, -1.0])), Mismatch)
    assert isinstance(held(bound, np.array([1.0, 2.0, -1.0])), Mismatch)


def test_what_overflows_on_the_way_is_free_and_nothing_else_is() -> None:
    x = np.array([[1.0, 2.0], [100.0, 2.0]], F32)
    bound = of(Step("e", Op.EXP, ("x",), (2, 2)), Step("s", Op.SUM, ("e",), (2, 1), dims=(1,)),
               Step("y", Op.DIV, ("e", "s"), (2, 2)), x=x)
    assert bound.free is not None and bound.free.tolist() == [[False, False], [True, True]]
    right = np.exp(x[:1]) / np.exp(x[:1]).sum()
    for rest in (np.nan, 1.0, np.inf):
        assert not isinstance(held(bound, np.concatenate([right, [[rest, rest]]])), Mismatch)
    assert isinstance(held(bound, np.array([[np.nan, right[0, 1]], [0, 0]])), Mismatch)


def test_what_ieee_gives_for_sure_is_asked_for() -> None:
    x = np.array([[1.0, np.nan, 2.0], [1.0, np.inf, 2.0], [1.0, 3.0, 2.0]], F32)
    total = of(Step("y", Op.SUM, ("x",), (3, 1), dims=(1,)), x=x)
    assert np.isnan(total.reference[0, 0]) and total.reference[1, 0] == np.inf and total.free is None
    weights = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]], F32)
    product = of(Step("y", Op.MATMUL, ("x", "w"), (3, 2)), x=x, w=weights)
    assert product.free is not None and np.argwhere(product.free).tolist() == [[1, 1]]  # infinity times zero
    assert product.reference[1, 0] == np.inf and np.isnan(product.reference[0]).all()
    soft = of(*softmax(x.shape), x=x)
    assert soft.free is not None and soft.free.all(axis=1).tolist() == [False, True, False]
    assert np.isnan(soft.reference[0]).all() and np.isfinite(soft.reference[2]).all()


def test_a_nan_may_be_lost_in_a_maximum() -> None:
    x = np.array([np.nan, -1.0, 2.0], F32)
    bound = of(Step("y", Op.RELU, ("x",), (3,)), x=x)
    for first in (np.nan, 0.0):
        assert held(bound, np.array([first, 0.0, 2.0])) == 0
    assert isinstance(held(bound, np.array([np.nan, np.nan, 2.0])), Mismatch)
    assert isinstance(held(bound, np.array([np.nan, -1e-30, 2.0])), Mismatch)


def test_masks_made_of_comparisons_are_sure() -> None:
    """x == 1 and what is made of it: a factor of 0 or 1 rounds nothing, so no element behind them is free."""
    x = np.array([-2.0, 0.0, 0.5, 1.0, 3.0], F32)
    scalar = Step("one", Op.SCALAR, (), (), value=1.0)
    shape = x.shape
    equal = [scalar, Step("below", Op.LESS_EQUAL, ("x", "one"), shape),
             Step("above", Op.LESS_EQUAL, ("one", "x"), shape),
             Step("equal", Op.MUL, ("below", "above"), shape)]
    assert of(*equal, x=x).bound.max() == 0
    far = [Step("far", Op.SCALAR, (), (), value=-1e9), Step("y", Op.WHERE, ("equal", "x", "far"), shape)]
    masked = of(*equal, *far, x=x)
    assert masked.free is None or not masked.free.any()
    assert masked.bound.max() == 0 and list(masked.reference) == [-1e9, -1e9, -1e9, 1.0, -1e9]
    negated = of(*equal, Step("other", Op.SUB, ("one", "equal"), shape), x=x)
    assert list(negated.reference) == [1, 1, 1, 0, 1] and negated.bound.max() == 0
    scaled = of(*equal, Step("y", Op.MUL, ("x", "equal"), shape), x=x)
    assert scaled.bound.max() == 0


@pytest.mark.parametrize("n", [9, 10, -3, 0, 1])
def test_a_whole_power_of_a_negative_number_is_decided(n: int) -> None:
    x = np.array([-3.0, -1.5, -0.25, 0.25, 2.0], F32)
    bound = of(Step("n", Op.SCALAR, (), (), value=float(n)), Step("y", Op.POW, ("x", "n"), x.shape), x=x)
    assert bound.free is None or not bound.free.any()
    assert not isinstance(held(bound, np.power(x, F32(n))), Mismatch)
    if n:
        assert isinstance(held(bound, np.power(x, F32(n)) * F32(1.001)), Mismatch)
        assert n % 2 == 0 or isinstance(held(bound, np.abs(np.power(x, F32(n)))), Mismatch)


def test_a_single_number_has_a_bound_of_its_own_shape() -> None:
    x = np.arange(6, dtype=F32).reshape(2, 3)
    bound = of(Step("s", Op.SUM, ("x",), (1, 1), dims=(0, 1)), Step("y", Op.RESHAPE, ("s",), ()), x=x)
    assert bound.reference.shape == bound.bound.shape == ()
    assert isinstance(held(bound, np.array(16.0)), Mismatch) and not isinstance(held(bound, np.array(15.0)), Mismatch)
