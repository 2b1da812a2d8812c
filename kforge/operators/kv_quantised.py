"""k and v as int8 with a scale for each position of each head: what a writer may leave of them, and inputs of readers.

With amax the largest absolute value of a position's D elements in one head, its scale is amax / 127 and its integers
are the elements times 127 / amax, rounded to nearest even; zeros where amax is below 1e-30, whose reciprocal would
overflow. Where amax is not finite the scale is NaN, and so is all that reads the position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge.operators import numerics
from kforge.operators.base import Bound
from kforge.operators.numerics import U

if TYPE_CHECKING:
    import numpy as np

MOST = 127  # the largest integer, in absolute value
SMALLEST_AMAX = 1e-30  # smaller positions become zeros


def quantised(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 integers shaped as ``x`` and float32 scales (without ``axis``) whose products are nearest to ``x``, however
    small it is. Where x is not finite the scale is NaN and the integers are large."""
    import numpy as np

    with np.errstate(invalid="ignore", divide="ignore"):
        amax = np.abs(x).max(axis=axis, keepdims=True)
        scale = (amax / np.float32(MOST) + (amax - amax)).astype(np.float32)
        wide = np.where(scale > 0, x / scale.astype(np.float64), 0)
    integers = np.where(np.isnan(scale), MOST, np.clip(np.rint(wide), -MOST, MOST))
    return integers.astype(np.int8), scale.squeeze(axis)


def written(x: np.ndarray, error: np.ndarray) -> tuple[Bound, Bound]:
    """Bounds of the integers [..., D] and scales [...] that a kernel writes for ``x`` [..., D] (float64), in which it
    may be off by ``error``.

    A quotient is rounded to the nearest integer, so it is off by half of one at most; where it lies near a tie, what
    errors before do to it decides, and both neighbours are right. With r = 127 x / amax and E the largest error of the
    position, those errors are ``127 (error + E |x| / amax) / (amax - E)`` and, of the reciprocal and the product,
    ``4u |r|``. The scale adds ``2u |scale|`` to ``E / 127``.
    """
    import numpy as np

    with np.errstate(invalid="ignore", divide="ignore"):
        amax, worst = np.abs(x).max(axis=-1, keepdims=True), error.max(axis=-1, keepdims=True)
        scale = amax / MOST + (amax - amax)
        off = worst / MOST + 2 * U * scale + numerics.underflow(1)
        exact = MOST * x / amax
        moved = MOST * (error + worst * np.abs(x) / amax) / (amax - worst) + 4 * U * np.abs(exact)
        zeros = amax + worst < SMALLEST_AMAX * (1 - U)
        free = ~zeros & ~(amax - worst > SMALLEST_AMAX * (1 + U))  # around the limit, and where amax is not finite
        free |= ~np.isfinite(scale)
    exact, bound = np.where(zeros | free, 0, exact), np.where(zeros, 0, 0.5 + np.where(free, 0, moved))
    return (Bound(exact, bound, np.broadcast_to(free, exact.shape)), Bound(scale[..., 0], off[..., 0]))
