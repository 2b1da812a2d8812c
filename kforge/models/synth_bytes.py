"""Random weights as the bytes that a model file stores."""

from __future__ import annotations

import math

import numpy as np

from kforge.core.dtypes import WeightFormat

_CHUNK_BYTES = 1 << 24
# Standard deviation of a block's weights when its integers are uniform, in units of its (super-)scale d; where there is
# a minimum, it is chosen so that the mean is zero.
_SPREAD = {
    WeightFormat.Q4_0: 4.61,  # u - 8, u of 4 bits
    WeightFormat.Q8_0: 73.9,
    WeightFormat.Q4_1: 4.61,
    WeightFormat.Q4_K: 257.0,  # sc * u - 7.5 * mn, sc and mn of 6 bits
    WeightFormat.Q5_K: 523.0,
    WeightFormat.Q6_K: 1367.0,  # sc * (u - 32), sc of 8 bits, u of 6
    WeightFormat.MXFP4: 5.85,  # twice a 4-bit float
}


def random_bytes(rng: np.random.Generator, format: WeightFormat, elements: int, columns: int) -> np.ndarray:
    """u8: the file's bytes of a random matrix of this many elements with rows of ``columns``.

    Integers are uniform bits, and scales vary by a quarter from block to block; floats are +-[1, 2) times 2^e.
    """
    traits = format.traits
    scale = 1.0 / math.sqrt(columns)
    count = elements // traits.file_block
    out = np.empty((count, traits.file_bytes), dtype=np.uint8)
    step = _CHUNK_BYTES // traits.file_bytes
    for first in range(0, count, step):
        part = out[first:first + step]
        words = rng.integers(0, 1 << 64, size=-(-part.size // 8), dtype=np.uint64)
        part[:] = words.view(np.uint8)[:part.size].reshape(part.shape)
        if format.quantized:
            _set_scales(rng, format, part, scale / _SPREAD[format])
        else:
            _set_exponent(format, part, scale)
    return out.reshape(-1)


def _set_scales(rng: np.random.Generator, format: WeightFormat, blocks: np.ndarray, d: float) -> None:
    varied = d * rng.uniform(0.75, 1.25, size=len(blocks))
    if format.traits.e8m0:
        blocks[:, 0] = np.rint(np.log2(varied)) + 128
        return
    scales = varied.astype(np.float16)
    first = blocks.shape[1] - 2 if format is WeightFormat.Q6_K else 0  # q6_k keeps its scale at the block's end
    blocks[:, first:first + 2] = scales.view(np.uint8).reshape(-1, 2)
    if format.traits.has_min:
        middle = ((1 << format.traits.bits) - 1) / 2
        # q4_1 adds its minimum, the K formats subtract theirs.
        sign = 1.0 if format.traits.superblock else -1.0
        minima = (scales.astype(np.float32) * np.float32(sign * middle)).astype(np.float16)
        blocks[:, 2:4] = minima.view(np.uint8).reshape(-1, 2)


def _set_exponent(format: WeightFormat, values: np.ndarray, scale: float) -> None:
    """Keeps random signs and mantissas, sets the exponent so that magnitudes are about ``scale``."""
    exponent = math.floor(math.log2(scale / 1.5))
    if format is WeightFormat.BF16:
        bits = values.reshape(-1).view(np.uint16)
        bits &= 0x807F
        bits |= (exponent + 127) << 7
    else:
        bits = values.reshape(-1).view(np.uint16)
        bits &= 0x83FF
        bits |= (exponent + 15) << 10
