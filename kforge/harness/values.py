"""Comparing a kernel's outputs with what they should be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kforge.core.dtypes import DType
from kforge.operators.base import Bound
from kforge.operators.numerics import widen


@dataclass(frozen=True)
class Mismatch:
    """The first element (in row-major order) that is wrong, and how many are."""

    tensor: str
    index: tuple[int, ...]
    value: float
    expected: float
    bound: float  # largest error allowed; 0 when bits are compared
    wrong: int
    elements: int

    def __str__(self) -> str:
        allowed = f" within {self.bound:.3g}" if self.bound else " to the bit"
        return (
            f"{self.tensor}{list(self.index)} is {self.value!r}, expected {self.expected!r}{allowed}"
            f" ({self.wrong} of {self.elements} elements are wrong)"
        )


def _mismatch(
    name: str, wrong: np.ndarray, value: np.ndarray, expected: np.ndarray, bound: np.ndarray | None
) -> Mismatch:
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    allowed = float(bound[at]) if bound is not None else 0.0
    return Mismatch(name, at, float(value[at]), float(expected[at]), allowed, int(wrong.sum()), wrong.size)


def beyond_bound(name: str, dtype: DType, value: np.ndarray, bound: Bound) -> Mismatch | float:
    """Worst |value - reference| over the bound (at most 1), or the first element beyond it.

    A reference of NaN asks for NaN, an infinite one for the same infinity; elsewhere the value must be finite, unless
    the bound is free there.
    """
    got = widen(value, dtype)
    finite = np.isfinite(bound.reference)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - bound.reference)
    right = np.where(
        finite,
        error <= bound.bound,  # false for a NaN or an infinity
        (got == bound.reference) | (np.isnan(got) & np.isnan(bound.reference)),
    )
    if bound.free is not None:
        right |= bound.free
        error = np.where(bound.free, 0.0, error)
    if not right.all():
        return _mismatch(name, ~right, got, bound.reference, bound.bound)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(finite & (error > 0), error / bound.bound, 0.0)
    return float(ratio.max(initial=0.0))


def differing_bits(name: str, dtype: DType, value: np.ndarray, expected: np.ndarray) -> Mismatch | None:
    """The first element whose bits differ. All NaNs count as equal: IEEE 754 leaves their payload open."""
    bits = np.dtype(f"u{value.dtype.itemsize}")
    wrong = np.ascontiguousarray(value).view(bits) != np.ascontiguousarray(expected).view(bits)
    if not wrong.any():
        return None
    got, want = widen(value, dtype), widen(expected, dtype)
    wrong &= ~(np.isnan(got) & np.isnan(want))
    return _mismatch(name, wrong, got, want, None) if wrong.any() else None
