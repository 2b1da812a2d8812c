"""Running error analysis: what any reasonable float32 evaluation of an imported function may differ from it by.

Every value of a graph is carried in float64 as an ``Approx``, per element:

- ``value`` r: what the function is at the inputs, exactly as far as float64 is exact.
- ``error`` e: how far a float32 evaluation may be from r, propagated by the rules below (Higham, "Accuracy and
  Stability of Numerical Algorithms", 2nd edition, section 3.3).
- ``scale`` s: the same sums and products over absolute values, |r| for what a function returns. An operation rounds by
  ``U s``, not by ``U |r|``: an evaluation that adds terms in another order, or multiplies before it subtracts, rounds
  values as large as that.
  Whole numbers below 2^12 without an error, and factors of 0 and of 1, round nothing: masks stay sure.
- ``low``, one number for all elements: no evaluation goes below it (a sum of squares not below 0, with an eps not below
  eps), so that roots and reciprocals of what is nearly zero are bounded.

Rules, with ea, eb the operands' errors. Sums and differences: ``ea + eb + U s``. Products:
``|a| eb + |b| ea + ea eb + U s``. Quotients: the same with the reciprocal's largest value over b's interval. A sum of n
terms that are not zero, and each element of a product of matrices: the terms' errors and ``(sqrt(n) + 2) U s``, a
quarter of ``numerics.sum_error``. Other functions: the largest change over the operand's interval, and a few ulps of
their own:

- exp, pow: ``(4 + 2 |x|) U r``, because the argument may be scaled by log2(e) first, and 2^-126, because a result that
  is denormal may be flushed. sigmoid: the same relative error.
- log: ``4 U (|r| + 1)``. sqrt: ``2 U r``. rsqrt, reciprocal, quotients: ``4 U r``.
- tanh, erf: ``4 U``, sin and cos: ``(4 + 2 |x|) U``, absolute: what formulas by way of exp and polynomials reach.
- Maxima and minima: the largest error among the operands that may be the one. ``where``: where the condition's interval
  leaves it open, both outcomes are right and everything between. A comparison that is open is 0 or 1.

The bound of an output is FACTOR times its error, for evaluations other than the graph's own: blocked and online forms
round some values once more.

Not a number. ``error`` is infinite where nothing is known of an element (*free*, its value 0): an intermediate may
leave float32's range, a root or a logarithm may be of a negative number, a divisor may be 0, an infinity may meet
another one or a 0 (in an online softmax, say, it does not). An infinity or a NaN with error 0 is sure: IEEE arithmetic
gives it to every evaluation. A NaN stays one through arithmetic; through a maximum, a minimum or a comparison it
becomes free, because instruction sets differ there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kforge.operators.erf import erf
from kforge.operators.numerics import ETA, U

FACTOR = 4.0
LARGEST = float(np.finfo(np.float32).max)
_FLUSHED = 2.0**-126  # the largest result that may be returned as 0
UNBOUNDED = -math.inf


@dataclass(frozen=True, eq=False)
class Approx:
    """One value of a graph; arrays of one shape, float64."""

    value: np.ndarray
    error: np.ndarray
    scale: np.ndarray
    low: float = UNBOUNDED

    @classmethod
    def exact(cls, value: np.ndarray) -> Approx:
        """An input, or a constant."""
        wide = np.asarray(value, np.float64)
        with np.errstate(invalid="ignore"):
            scale = np.where(np.isfinite(wide), np.abs(wide), 0.0)
        low = float(wide.min()) if wide.size and np.isfinite(wide).all() else UNBOUNDED
        return cls(wide, np.zeros_like(wide), scale, low)

    @property
    def free(self) -> np.ndarray:
        return np.isinf(self.error)

    @property
    def nan(self) -> np.ndarray:
        """Surely not a number."""
        return np.isnan(self.value)

    @property
    def usual(self) -> bool:
        """Whether nothing is infinite, free or not a number."""
        return bool(np.isfinite(self.value).all() and np.isfinite(self.error).all())

    def map(self, view: Callable[[np.ndarray], np.ndarray]) -> Approx:
        """The same elements, seen otherwise."""
        return Approx(view(self.value), view(self.error), view(self.scale), self.low)


def settled(value: np.ndarray, error: np.ndarray, scale: np.ndarray, low: float, operands: tuple[Approx, ...], *,
            sure: np.ndarray | bool = True) -> Approx:
    """What an operation of arithmetic gives, from its formulas, which hold for finite numbers.

    ``sure``: where the outcome with an infinite operand is IEEE's and no matter of rounding. Indeterminate forms never
    are.
    """
    error = np.where(np.isnan(error) | ~np.isfinite(value), np.inf, error)
    error = np.where(np.abs(value) + error > LARGEST, np.inf, error)
    if not all(operand.usual for operand in operands):
        infinite = _any([np.isinf(operand.value) for operand in operands])
        error = np.where(infinite, np.where(sure & ~np.isnan(value), 0.0, np.inf), error)
        error = np.where(_any([operand.free for operand in operands]), np.inf, error)
        nan = _any([operand.nan for operand in operands])
        error, value = np.where(nan, 0.0, error), np.where(nan, np.nan, value)
    return cleaned(value, error, scale, low)


def cleaned(value: np.ndarray, error: np.ndarray, scale: np.ndarray, low: float) -> Approx:
    free = np.isinf(error)
    value = np.where(free, 0.0, value)
    return Approx(value, error, np.where(free | ~np.isfinite(value) | ~np.isfinite(scale), 0.0, scale), low)


def _any(masks: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.logical_or, masks)


def add(a: Approx, b: Approx) -> Approx:
    scale = a.scale + b.scale
    rounding = np.where(_whole(a) & _whole(b), 0.0, U * scale)
    return settled(a.value + b.value, a.error + b.error + rounding, scale, a.low + b.low, (a, b))


def _whole(a: Approx) -> np.ndarray:
    """Where it is surely a whole number, and so small that neither a sum nor a product of two rounds: counts, masks."""
    return (a.error == 0) & (np.abs(a.value) <= 2**12) & (a.value == np.rint(a.value))


def _unit(a: Approx) -> np.ndarray:
    """Where it is surely 0, 1 or -1: a factor that rounds nothing."""
    return (a.error == 0) & np.isin(np.abs(a.value), (0.0, 1.0))


def negate(a: Approx) -> Approx:
    return Approx(-a.value, a.error, a.scale)


def multiply(a: Approx, b: Approx) -> Approx:
    scale = a.scale * b.scale
    error = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    error += np.where((_whole(a) & _whole(b)) | _unit(a) | _unit(b), 0.0, U * scale + ETA)
    low = a.low * b.low if min(a.low, b.low) >= 0 else UNBOUNDED
    # An infinity times what may be 0 or of either sign is anything.
    sure = _decided(a) & _decided(b)
    return settled(a.value * b.value, np.where((a.scale == 0) | (b.scale == 0), _zero_product(a, b), error), scale, low,
                   (a, b), sure=sure)


def _zero_product(a: Approx, b: Approx) -> np.ndarray:
    """The error of a product with a zero: none where that is exact."""
    return np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error


def _decided(a: Approx) -> np.ndarray:
    """Where the sign is known, or the value is exactly 0."""
    return (np.abs(a.value) > a.error) | (a.error == 0)


def square(a: Approx) -> Approx:
    scale = a.scale * a.scale
    error = 2 * np.abs(a.value) * a.error + a.error * a.error + U * scale + np.where(scale == 0, 0.0, ETA)
    return settled(a.value * a.value, error, scale, max(a.low, 0.0) ** 2, (a,))


def _nearest_zero(a: Approx) -> np.ndarray:
    """The least absolute value of any evaluation; not positive where it may be 0."""
    least = np.abs(a.value) - a.error
    return np.maximum(least, a.low) if a.low > 0 else least


def divide(a: Approx, b: Approx) -> Approx:
    least = _nearest_zero(b)
    value, inverse = a.value / b.value, 1 / np.abs(b.value)
    most = np.where(least > 0, 1 / least, np.inf)
    scale = a.scale * inverse
    error = a.error * most + np.abs(a.value) * (most - inverse) + 4 * U * scale + ETA * (1 + np.abs(a.value))
    error = np.where((a.value == 0) & (a.error == 0) & (least > 0), 0.0, error)
    low = 0.0 if a.low >= 0 and b.low >= 0 else UNBOUNDED
    return settled(value, error, scale, low, (a, b), sure=_decided(a) & (least > 0))


def reciprocal(a: Approx) -> Approx:
    least = _nearest_zero(a)
    value = 1 / a.value
    error = np.where(least > 0, 1 / least - np.abs(value) + 4 * U * np.abs(value) + ETA, np.inf)
    return settled(value, error, np.abs(value), 0.0 if a.low >= 0 else UNBOUNDED, (a,))


def absolute(a: Approx) -> Approx:
    return Approx(np.abs(a.value), a.error, a.scale, max(a.low, 0.0))


def relu(a: Approx) -> Approx:
    positive = a.value + a.error > 0
    error = np.where(a.nan, np.inf, np.where(positive | a.free, a.error, 0.0))
    return cleaned(np.maximum(a.value, 0.0), error, np.where(positive, a.scale, 0.0), max(a.low, 0.0))


def maximum(a: Approx, b: Approx, sign: float = 1.0) -> Approx:
    """``sign`` -1: the minimum."""
    above, below = sign * (a.value - b.value) > a.error + b.error, sign * (b.value - a.value) > a.error + b.error
    value = sign * np.maximum(sign * a.value, sign * b.value)

    def chosen(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(above, x, np.where(below, y, np.maximum(x, y)))

    unknown = a.nan | b.nan | a.free | b.free
    low = max(a.low, b.low) if sign > 0 else min(a.low, b.low)
    return cleaned(value, np.where(unknown, np.inf, chosen(a.error, b.error)), chosen(a.scale, b.scale), low)


def less(a: Approx, b: Approx, *, equal: bool = False) -> Approx:
    """1 where a is below b (or equal to it), else 0; a NaN is neither."""
    value = (a.value <= b.value if equal else a.value < b.value).astype(np.float64)
    errors = a.error + b.error
    decided = (np.abs(a.value - b.value) > errors) | (errors == 0) | a.nan | b.nan
    return Approx(value, np.where(decided, 0.0, 1.0), np.ones_like(value), 0.0)


def where(condition: Approx, a: Approx, b: Approx) -> Approx:
    first, a_error, b_error = condition.value != 0, a.error, b.error
    known = ~condition.nan & ((np.abs(condition.value) > condition.error) | (condition.error == 0))
    apart = np.abs(a.value - b.value)
    either = np.maximum(np.where(first, a_error, b_error), apart + np.where(first, b_error, a_error))
    either = np.where(np.isnan(either), np.inf, either)
    error = np.where(known, np.where(first, a_error, b_error), either)
    scale = np.where(known, np.where(first, a.scale, b.scale), np.maximum(a.scale, b.scale))
    return cleaned(np.where(first, a.value, b.value), error, scale, min(a.low, b.low))


def _function(a: Approx, value: np.ndarray, change: np.ndarray, own: np.ndarray, low: float) -> Approx:
    """A function of one operand: ``change`` over the operand's interval, ``own`` rounding. At an infinity the rounding
    remains where the outcome is finite."""
    nan = np.isnan(value) & np.isinf(a.value)
    error = np.where(np.isinf(a.value), np.where(np.isfinite(value), own, 0.0), change + own)
    error = np.where(np.isnan(error) | (np.isfinite(a.value) & ~np.isfinite(value)), np.inf, error)
    error = np.where(np.isfinite(value) & (np.abs(value) + error > LARGEST), np.inf, error)
    error = np.where(a.free, np.inf, np.where(a.nan | nan, 0.0, error))
    return cleaned(np.where(a.nan | nan, np.nan, value), error, np.abs(value), low)


def _size(a: Approx) -> np.ndarray:
    """|x| as a factor of an ulp, finite."""
    return np.minimum(np.abs(np.where(np.isnan(a.value), 0.0, a.value)), LARGEST)


def exponential(a: Approx) -> Approx:
    value = np.exp(a.value)
    own = (4 + 2 * np.minimum(_size(a), 1e4)) * U * np.where(np.isfinite(value), value, 0.0) + _FLUSHED
    return _function(a, value, value * np.expm1(np.minimum(a.error, 700.0)), own, 0.0)


def logarithm(a: Approx) -> Approx:
    value, least = np.log(a.value), np.maximum(a.value - a.error, a.low)
    change = np.where(least > 0, value - np.log(np.maximum(least, ETA)), np.inf)
    made = _function(a, value, change, 4 * U * (np.abs(value) + 1), UNBOUNDED)
    return _surely(made, (a.value == 0) & (a.error == 0), -np.inf, a.value + a.error < 0)


def square_root(a: Approx) -> Approx:
    value, least = np.sqrt(a.value), np.maximum(a.value - a.error, a.low)
    change = np.maximum(np.sqrt(a.value + a.error) - value, value - np.sqrt(np.maximum(least, 0.0)))
    made = _function(a, value, np.where(least >= 0, change, np.inf), 2 * U * value, 0.0)
    return _surely(made, False, 0.0, a.value + a.error < 0)


def inverse_root(a: Approx) -> Approx:
    value, least = 1 / np.sqrt(a.value), np.maximum(a.value - a.error, a.low)
    change = np.maximum(1 / np.sqrt(least) - value, value - 1 / np.sqrt(a.value + a.error))
    made = _function(a, value, np.where(least > 0, change, np.inf), 4 * U * value, 0.0)
    return _surely(made, False, 0.0, a.value + a.error < 0)


def _surely(made: Approx, at: np.ndarray | bool, value: float, negative: np.ndarray) -> Approx:
    """With the sure outcome ``value`` somewhere, and NaN of what is surely negative."""
    new = np.where(negative, np.nan, np.where(at, value, made.value))
    return cleaned(new, np.where(negative | at, 0.0, made.error), made.scale, made.low)


def tangent(a: Approx) -> Approx:
    value = np.tanh(a.value)
    slope = 1 - np.tanh(np.maximum(np.abs(a.value) - a.error, 0.0)) ** 2
    return _function(a, value, np.minimum(a.error, 2.0) * slope, np.full_like(value, 4 * U), UNBOUNDED)


def logistic(a: Approx) -> Approx:
    value = np.where(a.value >= 0, 1 / (1 + np.exp(-np.abs(a.value))), 0.0)
    value = np.where(a.value < 0, np.exp(a.value) / (1 + np.exp(a.value)), value)
    change = value * np.expm1(np.minimum(a.error, 700.0))  # the logarithm's slope is at most 1
    falling = np.minimum(np.maximum(-a.value, 0.0), 1e4)
    own = (4 + 2 * falling) * U * value + np.where(falling > 80, _FLUSHED, 0.0)
    return _function(a, np.where(a.nan, np.nan, value), np.minimum(change, 1.0), own, 0.0)


def error_function(a: Approx) -> Approx:
    """Free at an infinity: torch's own vector form gives NaN there."""
    value = erf(a.value)
    slope = 2 / math.sqrt(math.pi) * np.exp(-np.maximum(np.abs(a.value) - a.error, 0.0) ** 2)
    own = np.where(np.isinf(a.value), np.inf, 4 * U)
    return _function(a, value, np.minimum(a.error, 2.0) * slope, own, UNBOUNDED)


def wave(a: Approx, function: Callable[[np.ndarray], np.ndarray]) -> Approx:
    """sin or cos."""
    return _function(a, function(a.value), np.minimum(a.error, 2.0), (4 + 2 * _size(a)) * U, UNBOUNDED)


def _whole_power(a: Approx, n: np.ndarray) -> Approx:
    """a^n of any a but, for a negative n, of what may be 0. Products and exp(n log |a|) are within its bound."""
    size, count = np.abs(a.value), np.abs(n)
    least, most = size - a.error, size + a.error
    value = np.power(a.value, n)
    steep = np.where(n > 0, count * np.power(most, np.maximum(n - 1, 0)), count * np.power(least, np.minimum(n - 1, 0)))
    change = np.where((n == 0) | (a.error == 0), 0.0, steep * a.error)
    change = np.where((n < 0) & (least <= 0), np.inf, change)
    logs = np.maximum(1.0, np.maximum(np.abs(np.log(np.maximum(least, ETA))), np.abs(np.log(np.maximum(most, ETA)))))
    own = np.where(value == 0, 0.0, (4 + 2 * count * logs) * 2 * U * np.abs(value) + _FLUSHED)
    own = np.where((count <= 1) & (n >= 0), 0.0, own)
    even = bool((n % 2 == 0).all())
    return _function(a, value, change, own, 0.0 if even or a.low >= 0 else UNBOUNDED)


def power(a: Approx, b: Approx) -> Approx:
    """a^b of a positive a, or for a whole number b; a negative a to a power that is none is NaN, all else is free."""
    whole = (b.error == 0) & (b.value == np.rint(b.value)) & (np.abs(b.value) <= 2**12)
    if whole.all():
        return _whole_power(a, b.value)
    least = np.maximum(a.value - a.error, a.low)
    positive = (least > 0) & np.isfinite(a.value) & np.isfinite(b.value) & ~b.free
    value = np.where(positive, np.power(np.where(positive, a.value, 1.0), np.where(positive, b.value, 1.0)), 0.0)
    logs = np.maximum(np.abs(np.log(np.where(positive, least, 1.0))),
                      np.abs(np.log(np.where(positive, a.value + a.error, 1.0))))
    exponent = np.abs(b.value) * a.error / np.where(positive, least, 1.0) + logs * b.error
    own = (4 + 2 * np.abs(b.value) * logs) * 2 * U * value + _FLUSHED
    error = np.where(positive, value * np.expm1(np.minimum(exponent, 700.0)) + own, np.inf)
    error = np.where(np.isnan(error) | (np.abs(value) + error > LARGEST), np.inf, error)
    odd = (a.value + a.error < 0) & (b.error == 0) & np.isfinite(b.value) & (b.value != np.rint(b.value))
    nan = (odd & np.isfinite(a.value)) | (a.nan & (b.error == 0) & (b.value != 0))
    return cleaned(np.where(nan, np.nan, value), np.where(nan, 0.0, error), np.abs(value), 0.0)
