"""Number formats, activation quantisation and random inputs shared by the operators' references.

Errors, in the standard model: ``fl(a op b) = (a op b)(1 + e) + h`` with ``|e| <= u``, the unit roundoff, and
``|h| <= ETA``, which is zero for sums (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, sections
2.2 and 2.8). What the operators' bounds have in common:

- **Sums.** n terms, in any order that a kernel may reasonably choose, are held to ``4 (sqrt(n) + 2) u`` times the
  sum of their absolute values. For mean-independent rounding errors the error stays below ``lambda sqrt(n) u`` times
  that sum but for a probability of ``2 exp(-lambda^2 / 2)`` (Higham and Mary, "A new approach to probabilistic
  rounding error analysis", 2019, theorem 2.4); a plain sequential float32 sum of positive terms has a standard
  deviation of about ``0.25 sqrt(n) u``. So honest kernels stay below half of the bound, while a single dropped
  term, about 1/n of the sum, exceeds it up to n of about 20,000. Zero terms cost nothing and are not counted: on sparse
  inputs the bound is that of the few terms. Rounding errors of a sum of *equal* terms are not independent, so inputs
  that make all terms equal (EQUAL) use values whose sums are exact.
- **Underflow.** Each product may lose ETA; ``underflow(n)`` allows twice that for n of them. It is no tolerance: for
  n = 1000 it is below 2^-138.
- **The rounding of the output** to its type is granted once and in full, ``u |ref|``: where nothing else is computed
  (a residual, a copy into a cache) the output must be correctly rounded. All other constants are twice what a
  straightforward kernel can need.
- **NaN and infinity.** Where the reference has one, so must the output; where it has not, the output must be finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge.core.dtypes import DType
from kforge.operators.base import Distribution

if TYPE_CHECKING:
    import numpy as np

ROUNDOFF = {DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
SMALLEST = {DType.F32: 2.0**-149, DType.F16: 2.0**-24, DType.BF16: 2.0**-133}  # denormal spacing
U = ROUNDOFF[DType.F32]
ETA = 2.0**-150  # half of float32's denormal spacing: what one underflow costs
TWO_BITS = (-3.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 3.0)
SWIGLU_LIMIT = 7.0
SWIGLU_ALPHA = float.fromhex("0x1.b3b646p+0")  # 1.702 as float32
_POOL = 1_000_003  # prime, so that repeats of the pool fall on different rows


def sum_error(n: float | np.ndarray) -> Any:
    """Error allowed to a float32 sum of n non-zero terms, in relation to the sum of their absolute values."""
    return 4 * (n**0.5 + 2) * U


def underflow(n: float | np.ndarray) -> Any:
    """Error allowed to n products of float32 that may underflow."""
    return 2 * n * ETA


def numpy_dtype(dtype: DType) -> np.dtype:
    """Element type of arrays that hold ``dtype``; bf16 is held as its bits, uint16."""
    import numpy as np

    return np.dtype({DType.F32: "f4", DType.F16: "f2", DType.BF16: "u2", DType.I8: "i1", DType.U8: "u1",
                     DType.I32: "i4", DType.I64: "i8"}[dtype])


def widen(array: np.ndarray, dtype: DType) -> np.ndarray:
    """float64, exactly. What nobody wrote or a wrong kernel left may be any bits: signalling NaNs are no news."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        if dtype is DType.BF16:
            return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return array.astype(np.float64)


def narrow(array: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 values as ``dtype`` (f32, f16 or bf16), rounded to nearest even."""
    import numpy as np

    if dtype is not DType.BF16:
        return array.astype(numpy_dtype(dtype))
    bits = array.astype(np.float32, copy=False).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits  # wraps for NaNs only
    rounded >>= 16
    rounded[np.isnan(array)] = 0x7FC0
    return rounded.astype(np.uint16)


def rounded_bf16(x: np.ndarray) -> np.ndarray:
    """float32 values as the nearest bf16 ones, ties to even, in float32 again."""
    import numpy as np

    return (narrow(x, DType.BF16).astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True, eq=False)
class QuantizedActivations:
    """int8 activations with a scale per token and group of k: ``q`` int8 [M, K], ``d`` float32 [M, groups]."""

    q: np.ndarray
    d: np.ndarray

    def exact(self) -> np.ndarray:
        """float64 [M, K]."""
        import numpy as np

        grouped = self.q.reshape(*self.d.shape, -1) * self.d[:, :, None].astype(np.float64)
        return grouped.reshape(self.q.shape)


def quantize_a8(x: np.ndarray, act: str = "a8") -> QuantizedActivations:
    """The quantisation that the variant ``a8`` (a group is 32 k) or ``a8_token`` (all k of a token) declares, in
    float32 as its order specification has it, ties too.

    A group with a NaN or an infinity has the scale NaN.
    """
    import numpy as np

    groups = x.reshape(x.shape[0], -1, x.shape[1] if act == "a8_token" else 32)
    amax = np.abs(groups).max(axis=2)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(amax >= np.float32(1e-30), np.float32(127) / amax, np.float32(0))
        scaled = np.nan_to_num(np.rint(groups * inverse[:, :, None]))
        d = amax / np.float32(127) + (amax - amax)
    return QuantizedActivations(np.clip(scaled, -127, 127).astype(np.int8).reshape(x.shape), d)


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)) in float64."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return x / (1 + np.exp(-x))


def silu_error(x: np.ndarray) -> np.ndarray:
    """Relative error allowed to a float32 silu(x), a product with it included.

    The argument of exp may have been rounded twice (by -x log2(e)), an absolute error of 2u |x|, which reaches the
    result by the factor of exp(-x) in 1 + exp(-x). exp itself, the sum, the quotient and the product add up to 4u;
    all of this twice. Below -87 exp(-x) or its reciprocal leaves float32's range: there zero is as good as the result.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        error = (8 + 4 * np.abs(x) / (1 + np.exp(x))) * U
    return np.where(x < -87, 1.0, error)


def swiglu_oai_error(gate: np.ndarray) -> np.ndarray:
    """Relative error allowed to a float32 (up + 1) gate sigmoid(1.702 gate), for a clamped gate.

    As for silu, with one more rounding of exp's argument (the product with 1.702), an absolute error of u |x|, and one
    of up + 1: ``(10 + 6 |x| / (1 + e^x)) u`` with x = 1.702 gate.
    """
    import numpy as np

    x = SWIGLU_ALPHA * gate
    with np.errstate(over="ignore", invalid="ignore"):
        error = (10 + 6 * np.abs(x) / (1 + np.exp(x))) * U
    return np.where(x < -87, 1.0, error)


def normals(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """float32 standard normal values; beyond a million repeated from a pool, so that gigabytes take no time."""
    import numpy as np

    size = int(np.prod(shape))
    if size <= _POOL:
        return rng.standard_normal(shape, np.float32)
    return np.resize(rng.standard_normal(_POOL, np.float32), shape)


def draw(rng: np.random.Generator, rows: int, columns: int, distribution: Distribution) -> np.ndarray:
    """float32 activations [rows, columns] of one distribution.

    ONE_HOT: one value of about 1 per row. CANCEL: within each 16 columns (the smallest group of a format) values come
    in pairs +x, -x at shuffled places, the same places in every row and group: see ``pair_places``. EQUAL: values of
    two bits, so that sums of them and of their squares are exact. NAN, INFINITE: a single one in three of four rows.
    """
    import numpy as np

    if distribution is Distribution.ROWS:
        return _rows_of_all(rng, rows, columns)
    if distribution is Distribution.ONE_HOT:
        x = np.zeros((rows, columns), np.float32)
        hot = np.resize(rng.permutation(columns), rows)
        x[np.arange(rows), hot] = rng.uniform(0.5, 1.5, rows) * rng.choice([-1, 1], rows)
        return x
    x = normals(rng, (rows, columns))
    match distribution:
        case Distribution.HEAVY_TAIL:
            x.reshape(-1)[rng.integers(0, x.size, max(1, x.size // 100))] *= 100
        case Distribution.POSITIVE:
            x = np.abs(x)
        case Distribution.NEGATIVE:
            x = -np.abs(x)
        case Distribution.TINY:
            x *= np.float32(1e-6)
        case Distribution.LARGE:
            x *= np.float32(1e3)
        case Distribution.DENORMAL:
            x *= np.float32(1e-40)
        case Distribution.MIXED:
            x *= magnitudes(rng, x.shape)
        case Distribution.SPARSE:
            x *= rng.integers(0, 2, x.shape)  # a negative value leaves a negative zero
            x[np.arange(1, rows, 4)] *= 0
        case Distribution.EQUAL:
            x[:] = rng.choice(TWO_BITS, (rows, 1))
        case Distribution.CANCEL:
            for first, second in pair_places(columns):
                x[:, second] = -x[:, first]
        case Distribution.NAN | Distribution.INFINITE:
            hit = np.flatnonzero(np.arange(rows) % 4 != 3)
            values = [np.nan] if distribution is Distribution.NAN else [np.inf, -np.inf]
            x[hit, rng.integers(0, columns, len(hit))] = rng.choice(values, len(hit))
    return x


def _rows_of_all(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    import numpy as np

    kinds = [d for d in Distribution if d is not Distribution.ROWS]
    which = np.resize(rng.permutation(len(kinds)), rows)
    x = np.empty((rows, columns), np.float32)
    for i, kind in enumerate(kinds):
        if (at := np.flatnonzero(which == i)).size:
            x[at] = draw(rng, len(at), columns, kind)
    return x


def magnitudes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """float32 factors of 1e-8 to 1e4; times a normal value, none exceeds float16's range."""
    import numpy as np

    return np.float32(10) ** rng.uniform(-8, 4, shape).astype(np.float32)


def pair_places(columns: int) -> list[tuple[int, int]]:
    """Columns that cancel each other: a fixed shuffle inside each 16 consecutive ones. An odd rest stays single."""
    order = (5, 12, 0, 9, 3, 14, 7, 2, 11, 1, 15, 6, 8, 13, 4, 10)
    pairs = []
    for start in range(0, columns, 16):
        inside = [start + place for place in order if start + place < columns]
        pairs += list(zip(inside[0::2], inside[1::2], strict=False))
    return pairs
