"""Comparing a kernel's outputs with what they should be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kforge.core.dtypes import DType
from kforge.operators.base import Bound

_NUMPY = {
    DType.F32: np.dtype(np.float32), DType.F16: np.dtype(np.float16), DType.BF16: np.dtype(np.uint16),
    DType.I8: np.dtype(np.int8), DType.U8: np.dtype(np.uint8), DType.I32: np.dtype(np.int32), DType.I64: np.dtype(np.int64),
}  # fmt: skip


def numpy_dtype(dtype: DType) -> np.dtype:
    """bfloat16 travels as its 16 bits."""
    return _NUMPY[dtype]


def to_float64(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Exact values; bfloat16 from its bits."""
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


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


def _mismatch(name: str, wrong: np.ndarray, value: np.ndarray, expected: np.ndarray, bound: np.ndarray | None) -> Mismatch:
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    allowed = float(bound[at]) if bound is not None else 0.0
    return Mismatch(name, at, float(value[at]), float(expected[at]), allowed, int(wrong.sum()), wrong.size)


def beyond_bound(name: str, dtype: DType, value: np.ndarray, bound: Bound) -> Mismatch | float:
    """Worst |value - reference| over the bound (at most 1), or the first element beyond it.

    A reference of NaN asks for NaN, an infinite one for the same infinity; elsewhere the value must be finite.
    """
    got = to_float64(value, dtype)
    finite = np.isfinite(bound.reference)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - bound.reference)
    right = np.where(
        finite,
        error <= bound.bound,  # false for a NaN or an infinity
        (got == bound.reference) | (np.isnan(got) & np.isnan(bound.reference)),
    )
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
    got, want = to_float64(value, dtype), to_float64(expected, dtype)
    wrong &= ~(np.isnan(got) & np.isnan(want))
    return _mismatch(name, wrong, got, want, None) if wrong.any() else None
