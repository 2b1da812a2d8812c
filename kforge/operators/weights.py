"""A weight as stored in a model file, taken apart into integers and scales without losing a bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.operators import mxfp4

if TYPE_CHECKING:
    import numpy as np


MOST_INT8_COLUMNS = (2**31 - 1) // (128 * 127) // 32 * 32  # 132,096: so that their dot product is an int32


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """Matrix [N, K] in a weight format. Arrays that a format lacks have a last axis of length 0.

    ``values``: the stored codes as uint8 [N, K]: the unsigned integers u, but for mxfp4, whose table says what they
    stand for; for f32 float32, for f16 float16, for bf16 the bits as uint16.
    ``d``: float16 [N, K / 32], for K formats the super-scale [N, K / 256]; for mxfp4 the exponents, uint8 [N, K / 32];
    for int8_channel float32 [N, 1].
    ``m``: float16, the minimum of q4_1 [N, K / 32] or ``dmin`` of q4_k and q5_k [N, K / 256].
    ``sc``: uint8 [N, K / 32] (q4_k, q5_k) or int8 [N, K / 16] (q6_k).  ``mn``: uint8 [N, K / 32] (q4_k, q5_k).
    """

    format: WeightFormat
    values: np.ndarray
    d: np.ndarray
    m: np.ndarray
    sc: np.ndarray
    mn: np.ndarray

    @property
    def n(self) -> int:
        return int(self.values.shape[0])

    @property
    def k(self) -> int:
        return int(self.values.shape[1])

    def rows(self, start: int, stop: int) -> QuantizedWeight:
        """Rows start .. stop-1, without a copy."""
        return QuantizedWeight(self.format, *(part[start:stop] for part in self.arrays()))

    def take(self, rows: np.ndarray) -> QuantizedWeight:
        """The given rows, copied."""
        return QuantizedWeight(self.format, *(part[rows] for part in self.arrays()))

    def arrays(self) -> list[np.ndarray]:
        return [self.values, self.d, self.m, self.sc, self.mn]

    def signed(self) -> np.ndarray:
        """int16 [N, K]: ``u - offset`` of an integer format."""
        import numpy as np

        traits = self.format.traits
        if traits.table:
            return (np.array(traits.table, np.int16) - np.int16(traits.offset))[self.values]
        wide = self.values.astype(np.int16)
        wide -= np.int16(traits.offset)
        return wide

    def scales(self) -> np.ndarray:
        """float32 [N, K / group]: ``d``, or the exact product ``d * sc`` of K formats."""
        import numpy as np

        if self.format.traits.e8m0:
            return mxfp4.scales(self.d)
        d = self.d.astype(np.float32)
        if self.format.traits.row_scale:
            return spread(d, self.k // self.format.traits.group)
        return d if not self.sc.shape[1] else spread(d, self.sc.shape[1]) * self.sc.astype(np.float32)

    def minima(self) -> np.ndarray:
        """float32 [N, K / 32]: ``m``, or ``-(dmin * mn)``; zeros for formats without a minimum."""
        import numpy as np

        m = self.m.astype(np.float32)
        if self.mn.shape[1]:
            return -(spread(m, self.mn.shape[1]) * self.mn.astype(np.float32))
        return m if m.shape[1] else np.zeros((self.n, self.k // 32), np.float32)

    def dequantize(self) -> np.ndarray:
        """float32 [N, K], equal to ``gguf.quants.dequantize`` to the bit (one rounding, only with a minimum)."""
        import numpy as np

        if self.format is WeightFormat.BF16:
            return (self.values.astype(np.uint32) << 16).view(np.float32)
        traits = self.format.traits
        if not self.format.quantized:
            return self.values.astype(np.float32)
        grouped = self.signed().reshape(self.n, -1, traits.group).astype(np.float32)
        grouped *= self.scales()[:, :, None]
        if traits.has_min:
            grouped += self.minima()[:, :, None]
        return grouped.reshape(self.n, self.k)


def spread(per_block: np.ndarray, columns: int) -> np.ndarray:
    """Repeat the last axis so that it has ``columns`` entries."""
    return per_block.repeat(columns // per_block.shape[1], axis=1)


def assembled(format: WeightFormat, values: np.ndarray, d: np.ndarray | None = None, m: np.ndarray | None = None, *,
              sc: np.ndarray | None = None, mn: np.ndarray | None = None) -> QuantizedWeight:
    """A weight of these parts; what a format lacks is left out."""
    import numpy as np

    def given(part: np.ndarray | None, dtype: Any) -> np.ndarray:
        return np.zeros((values.shape[0], 0), dtype) if part is None else np.ascontiguousarray(part)

    scale_type = np.int8 if format is WeightFormat.Q6_K else np.uint8
    return QuantizedWeight(format, np.ascontiguousarray(values), given(d, np.float16), given(m, np.float16),
                           given(sc, scale_type), given(mn, np.uint8))


def concat(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Rows of all parts one after another (a fused q+k+v, a fused gate+up). Formats and K must agree."""
    import numpy as np

    if len({(part.format, part.k) for part in parts}) != 1:
        raise ValueError("weights of different formats or K cannot be joined: "
                         + ", ".join(f"{part.format}[{part.n}, {part.k}]" for part in parts))
    return QuantizedWeight(parts[0].format, *(np.concatenate(arrays) for arrays in zip(*(p.arrays() for p in parts),
                                                                                       strict=True)))


def from_gguf(raw: bytes | np.ndarray, format: WeightFormat, n: int, k: int) -> QuantizedWeight:
    """Take apart the bytes of a GGUF tensor of N rows of K elements. Raises KforgeError when the size is wrong."""
    import numpy as np

    traits = format.traits
    if traits.row_scale:
        raise KforgeError(f"GGUF files have no {format}")
    data = np.frombuffer(raw, np.uint8) if isinstance(raw, bytes) else np.ascontiguousarray(raw).view(np.uint8).ravel()
    if k % traits.file_block:
        raise KforgeError(f"{format} needs rows of a multiple of {traits.file_block} elements, got {k}")
    if data.size != n * k // traits.file_block * traits.file_bytes:
        raise KforgeError(f"a {format} tensor of {n} x {k} has {n * k // traits.file_block * traits.file_bytes} bytes, "
                          f"got {data.size}: the file is truncated or corrupt")
    if not format.quantized:
        dtype = {WeightFormat.F32: np.float32, WeightFormat.F16: np.float16, WeightFormat.BF16: np.uint16}[format]
        return assembled(format, data.view(dtype).reshape(n, k))
    blocks = data.reshape(-1, traits.file_bytes)
    return _DECODE[format](blocks, n, k)


def _half(blocks: np.ndarray, start: int, n: int) -> np.ndarray:
    """The float16 at byte ``start`` of every block, as [N, blocks per row]."""
    import numpy as np

    return np.ascontiguousarray(blocks[:, start:start + 2]).view(np.float16).reshape(n, -1)


def _nibbles(bytes_: np.ndarray, run: int) -> np.ndarray:
    """Low nibbles of ``run`` bytes, then their high nibbles, run after run: [blocks, 2 x bytes]."""
    import numpy as np

    runs = bytes_.reshape(bytes_.shape[0], -1, 1, run)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(bytes_.shape[0], -1)


def _q8_0(blocks: np.ndarray, n: int, k: int) -> QuantizedWeight:
    # signed byte + 128 is the sign bit flipped
    return assembled(WeightFormat.Q8_0, (blocks[:, 2:] ^ 0x80).reshape(n, k), _half(blocks, 0, n))


def _q4_0(blocks: np.ndarray, n: int, k: int) -> QuantizedWeight:
    return assembled(WeightFormat.Q4_0, _nibbles(blocks[:, 2:], 16).reshape(n, k), _half(blocks, 0, n))


def _q4_1(blocks: np.ndarray, n: int, k: int) -> QuantizedWeight:
    values = _nibbles(blocks[:, 4:], 16).reshape(n, k)
    return assembled(WeightFormat.Q4_1, values, _half(blocks, 0, n), _half(blocks, 2, n))


def _six_bit_scales(blocks: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """The eight 6-bit scales and minima in bytes 4..15 of a q4_k or q5_k block, each as [N, K / 32]."""
    import numpy as np

    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    sc = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=1)
    mn = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=1)
    return {"sc": sc.reshape(n, -1), "mn": mn.reshape(n, -1)}


def _q4_k(blocks: np.ndarray, n: int, k: int) -> QuantizedWeight:
    values = _nibbles(blocks[:, 16:], 32).reshape(n, k)
    return assembled(WeightFormat.Q4_K, values, _half(blocks, 0, n), _half(blocks, 2, n), **_six_bit_scales(blocks, n))


def _q5_k(blocks: np.ndarray, n: int, k: int) -> QuantizedWeight:
    import numpy as np

    values = _nibbles(blocks[:, 48:], 32).reshape(-1, 8, 32)
    fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
    values |= fifth << 4
    return assembled(WeightFormat.Q5_K, values.reshape(n, k), _half(blocks, 0, n), _half(blocks, 2, n),
                   **_six_bit_scales(blocks, n))


def _q6_k(blocks: np.ndarray, n: int, k: int) -> QuantizedWeight:
    import numpy as np

    values = _nibbles(blocks[:, :128], 64).reshape(-1, 2, 4, 32)
    top = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> (2 * np.arange(4, dtype=np.uint8))[None, None, :, None] & 3
    values |= top << 4
    sc = blocks[:, 192:208].view(np.int8)
    return assembled(WeightFormat.Q6_K, values.reshape(n, k), _half(blocks, 208, n), sc=sc.reshape(n, -1))


def _mxfp4(blocks: np.ndarray, n: int, k: int) -> QuantizedWeight:
    return _mxfp4_weight(_nibbles(blocks[:, 1:], 16).reshape(n, k), blocks[:, 0].reshape(n, -1))


def _mxfp4_weight(codes: np.ndarray, exponents: np.ndarray) -> QuantizedWeight:
    mxfp4.require_numbers(exponents)
    return assembled(WeightFormat.MXFP4, codes, exponents)


_DECODE = {WeightFormat.Q8_0: _q8_0, WeightFormat.Q4_0: _q4_0, WeightFormat.Q4_1: _q4_1, WeightFormat.Q4_K: _q4_k,
           WeightFormat.Q5_K: _q5_k, WeightFormat.Q6_K: _q6_k, WeightFormat.MXFP4: _mxfp4}


def from_mxfp4_blocks(blocks: np.ndarray, scales: np.ndarray) -> QuantizedWeight:
    """An mxfp4 matrix as safetensors files have it: ``blocks`` uint8 [..., N, K / 32, 16], each byte two *adjacent* k,
    the lower one in its low nibble (GGUF has k and k + 16 there); ``scales`` uint8 [..., N, K / 32]. Leading dimensions
    (experts) come out as more rows.

    Raises KforgeError for shapes that do not belong together.
    """
    if blocks.ndim < 3 or blocks.shape[-1] != 16 or blocks.shape[:-1] != scales.shape:
        raise KforgeError(f"mxfp4 blocks have the shape [..., rows, groups, 16] and scales [..., rows, groups], got "
                          f"{list(blocks.shape)} and {list(scales.shape)}")
    groups = scales.shape[-1]
    return _mxfp4_weight(_nibbles(blocks.reshape(-1, 16), 1).reshape(-1, 32 * groups), scales.reshape(-1, groups))


def from_int8_channel(values: np.ndarray, scales: np.ndarray) -> QuantizedWeight:
    """An int8_channel matrix as safetensors files have it: ``values`` int8 [N, K], ``scales`` float32 [N, 1] or [N].

    Raises KforgeError for shapes that do not belong together, a K that kernels cannot take, and scales that are no
    finite numbers.
    """
    import numpy as np

    n, k = values.shape
    if scales.shape not in ((n, 1), (n,)):
        raise KforgeError(f"int8 weights of {n} rows have one scale a row, [{n}, 1], got {list(scales.shape)}")
    require_int8_columns(k)
    if not np.isfinite(scales).all():
        raise KforgeError("a scale of int8 weights is no finite number")
    return assembled(WeightFormat.INT8_CHANNEL, values.view(np.uint8) ^ np.uint8(0x80),
                     scales.astype(np.float32).reshape(n, 1))


def require_int8_columns(k: int) -> None:
    """Raises KforgeError for rows of int8_channel that kernels cannot take: values are packed in groups of 32, and the
    sum of K products of at most 128 * 127 must be an int32."""
    if k % 32 or k > MOST_INT8_COLUMNS:
        raise KforgeError(f"{WeightFormat.INT8_CHANNEL} needs rows of a multiple of 32 elements, at most "
                          f"{MOST_INT8_COLUMNS}, got {k}")


def quantize_mxfp4(values: np.ndarray) -> QuantizedWeight:
    """float32 [N, K] (K a multiple of 32) in mxfp4: each group's exponent is that of its largest value, as the OCP
    specification has it, and each value the nearest one then, ties to the even code, too large ones to the largest."""
    codes, exponents = mxfp4.quantize(values)
    return _mxfp4_weight(codes, exponents)
