"""Random weights, drawn for checks and timing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kforge.core.dtypes import WeightFormat
from kforge.operators import mxfp4
from kforge.operators.weights import QuantizedWeight, assembled

if TYPE_CHECKING:
    import numpy as np


def random(format: WeightFormat, n: int, k: int, seed: int) -> QuantizedWeight:
    """Every stored code equally likely, scales within a factor of two, of either sign, and a few of zero (of mxfp4:
    three exponents; of int8_channel: few negative ones); weights of about 1 / sqrt(K). Quick."""
    import numpy as np

    rng = np.random.default_rng(seed)
    traits = format.traits
    if k % traits.file_block:
        raise ValueError(f"{format} needs K to be a multiple of {traits.file_block}, got {k}")
    if not format.quantized:
        return assembled(format, _random_floats(format, n, k, rng))
    values = np.frombuffer(rng.bytes(n * k), np.uint8).reshape(n, k) & np.uint8((1 << traits.bits) - 1)
    spread_of_one = k**-0.5 / 2 ** (traits.bits - 2)

    def halves(columns: int, scale: float) -> np.ndarray:
        sizes = ((0.5 + rng.random((n, columns), np.float32)) * np.float32(scale)).astype(np.float16)
        # Signs as files have them: the value of the largest size decides, not its absolute value.
        return sizes * rng.choice(np.array([-1, 1, 0], np.float16), sizes.shape, p=(0.5, 0.48, 0.02))

    if traits.e8m0:
        middle = round(float(np.log2(spread_of_one))) + mxfp4.BIAS
        return assembled(format, values, rng.integers(middle - 1, middle + 2, (n, k // 32)).astype(np.uint8))
    if traits.row_scale:
        d = (0.5 + rng.random((n, 1), np.float32)) * np.float32(spread_of_one)
        return assembled(format, values, d * rng.choice(np.array([-1, 1, 0], np.float32), d.shape, p=(0.1, 0.88, 0.02)))
    if not traits.superblock:
        d = halves(k // 32, spread_of_one)
        m = -(d * np.float16(2 ** (traits.bits - 1))) * halves(k // 32, 1.0) if traits.has_min else None
        return assembled(format, values, d, m)
    if not traits.has_min:
        signed = rng.integers(-128, 128, (n, k // 16)).astype(np.int8)
        return assembled(format, values, halves(k // 256, spread_of_one / 64), sc=signed)
    sc, mn = (rng.integers(0, 64, (n, k // 32)).astype(np.uint8) for _ in range(2))
    d, dmin = halves(k // 256, spread_of_one / 32), halves(k // 256, spread_of_one / 32 * 2 ** (traits.bits - 1))
    return assembled(format, values, d, dmin, sc=sc, mn=mn)


def with_denormals(weight: QuantizedWeight, every: int = 2) -> QuantizedWeight:
    """One of ``every`` rows with denormal scales (float16; of mxfp4 those of 2^-127 and 2^-128, denormal in float32)
    or, in a float format, denormal values: a decoder that flushes them, or takes their exponent for an ordinary one,
    is wrong in the whole row."""
    import numpy as np

    def denormal(values: np.ndarray) -> np.ndarray:
        wide: Any = np.uint32 if values.dtype == np.float32 else np.uint16
        mantissa = 23 if values.dtype == np.float32 else 10 if values.dtype == np.float16 else 7
        bits = np.array(values).view(wide)
        bits[1::every] &= wide((1 << 8 * bits.itemsize - 1) | (1 << mantissa) - 1)
        return bits.view(values.dtype)

    if weight.format.traits.e8m0:
        exponents = np.array(weight.d)
        exponents[1::every] &= 1
        return QuantizedWeight(weight.format, weight.values, exponents, weight.m, weight.sc, weight.mn)
    values = weight.values if weight.format.quantized else denormal(weight.values)
    return QuantizedWeight(weight.format, values, denormal(weight.d), denormal(weight.m), weight.sc, weight.mn)


def _random_floats(format: WeightFormat, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Floats with a random sign and mantissa and one of four exponents below 2 / sqrt(K): cheap and never special."""
    import numpy as np

    wide: Any = np.uint32 if format is WeightFormat.F32 else np.uint16
    mantissa = {WeightFormat.F32: 23, WeightFormat.F16: 10, WeightFormat.BF16: 7}[format]
    bias = 15 if format is WeightFormat.F16 else 127
    top = int(np.ceil(np.log2(k) / -2)) + bias
    bits: Any = np.frombuffer(rng.bytes(n * k * np.dtype(wide).itemsize), wide).reshape(n, k)
    sign = wide(1 << (8 * np.dtype(wide).itemsize - 1))
    exponent = wide(max(top - 3, 1)) + (bits >> mantissa & wide(3))
    values = (bits & (sign | wide((1 << mantissa) - 1))) | exponent << wide(mantissa)
    return values if format is WeightFormat.BF16 else values.view(np.float32 if wide is np.uint32 else np.float16)
