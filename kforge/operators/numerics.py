"""Number formats, activation quantisation and random inputs shared by the operators' references.

Errors. With u the unit roundoff of float32, a sum of n terms, in any order that a kernel may reasonably choose, is
held to ``4 (sqrt(n) + 2) u`` times the sum of the terms' absolute values. For mean-independent rounding errors it stays
below ``lambda sqrt(n) u`` times that sum but for a probability of ``2 exp(-lambda^2 / 2)`` (Higham and Mary, "A
new approach to probabilistic rounding error analysis", 2019, theorem 2.4); a plain sequential float32 sum of positive
terms has a standard deviation of about ``0.25 sqrt(n) u``. So honest kernels stay below half of the bound, while a
single dropped term, about 1/n of the sum, exceeds it up to n of about 20,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.operators.base import Distribution

if TYPE_CHECKING:
    import numpy as np

ROUNDOFF = {DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
SMALLEST = {DType.F32: 2.0**-149, DType.F16: 2.0**-24, DType.BF16: 2.0**-133}  # denormal spacing
U = ROUNDOFF[DType.F32]
TINY = 2.0**-140  # what underflow inside a kernel may cost
_POOL = 1_000_003  # prime, so that repeats of the pool fall on different rows


def sum_error(n: float) -> float:
    """Error allowed to a float32 sum of n terms, in relation to the sum of their absolute values."""
    return float(4 * (n**0.5 + 2) * U)


def numpy_dtype(dtype: DType) -> np.dtype:
    """Element type of arrays that hold ``dtype``; bf16 is held as its bits, uint16."""
    import numpy as np

    return np.dtype({DType.F32: "f4", DType.F16: "f2", DType.BF16: "u2", DType.I8: "i1", DType.U8: "u1",
                     DType.I32: "i4", DType.I64: "i8"}[dtype])


def widen(array: np.ndarray, dtype: DType) -> np.ndarray:
    """float64, exactly."""
    import numpy as np

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


@dataclass(frozen=True, eq=False)
class QuantizedActivations:
    """int8 activations with a scale per token and 32 k: ``q`` int8 [M, K], ``d`` float32 [M, K / 32]."""

    q: np.ndarray
    d: np.ndarray

    def exact(self) -> np.ndarray:
        """float64 [M, K]."""
        import numpy as np

        grouped = self.q.reshape(*self.d.shape, 32) * self.d[:, :, None].astype(np.float64)
        return grouped.reshape(self.q.shape)


def quantize_a8(x: np.ndarray) -> QuantizedActivations:
    """The quantisation that the variant ``a8`` declares, in float32 as its order specification has it, ties too."""
    import numpy as np

    groups = x.reshape(x.shape[0], -1, 32)
    amax = np.abs(groups).max(axis=2)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(amax >= np.float32(1e-30), np.float32(127) / amax, np.float32(0))
    q = np.clip(np.rint(groups * inverse[:, :, None]), -127, 127).astype(np.int8)
    return QuantizedActivations(q.reshape(x.shape), amax / np.float32(127))


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)) in float64."""
    import numpy as np

    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


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
    in pairs +x, -x at shuffled places, the same places in every row and group: see ``pair_places``.
    """
    import numpy as np

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
        case Distribution.TINY:
            x *= np.float32(1e-6)
        case Distribution.LARGE:
            x *= np.float32(1e3)
        case Distribution.CANCEL:
            for first, second in pair_places(columns):
                x[:, second] = -x[:, first]
    return x


def pair_places(columns: int) -> list[tuple[int, int]]:
    """Columns that cancel each other: a fixed shuffle inside each 16 consecutive ones. An odd rest stays single."""
    order = (5, 12, 0, 9, 3, 14, 7, 2, 11, 1, 15, 6, 8, 13, 4, 10)
    pairs = []
    for start in range(0, columns, 16):
        inside = [start + place for place in order if start + place < columns]
        pairs += list(zip(inside[0::2], inside[1::2], strict=False))
    return pairs
