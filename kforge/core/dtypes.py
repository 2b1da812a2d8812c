"""Element types of tensors and storage formats of weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DType(StrEnum):
    """Element type of an unpacked tensor."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I8 = "i8"
    U8 = "u8"
    I32 = "i32"
    I64 = "i64"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _SIZES[self]


_SIZES = {DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.I8: 1, DType.U8: 1, DType.I32: 4, DType.I64: 8}


class WeightFormat(StrEnum):
    """How a model file stores a weight matrix (names as in GGUF). Kernels know them by their order: append only."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q4_K = "q4_k"
    Q5_K = "q5_k"
    Q6_K = "q6_k"
    MXFP4 = "mxfp4"
    INT8_CHANNEL = "int8_channel"  # of compressed-tensors: int8 with one scale for each row

    @property
    def traits(self) -> FormatTraits:
        return TRAITS[self]

    @property
    def quantized(self) -> bool:
        return self.traits.bits < 16

    @property
    def acts(self) -> tuple[str, ...]:
        """Activations that an engine may choose for a product with it: int8 ones first, where there are any."""
        if not self.quantized:
            return ("f32",)
        return ("a8_token" if self.traits.row_scale else "a8", "f32")

    def act(self, wanted: str) -> str:
        """The activations that ``wanted``, a user's "a8" (int8) or "f32", means for it."""
        return self.acts[0] if wanted == "a8" else "f32"


@dataclass(frozen=True)
class FormatTraits:
    """What a kernel needs to know of a weight format.

    A quantised weight is ``w = d * (u - offset) + m`` with ``u`` an unsigned integer: the stored code of ``bits`` bits,
    or ``table[code]`` where there is a table.  ``d`` holds for ``group`` consecutive k, ``m`` is zero unless
    ``has_min``.  With ``superblock`` > 0 (the K formats), ``d`` and ``m`` are products of a float16 per ``superblock``
    values and a small integer per group (both products exact in float32); with ``e8m0`` a scale is a byte e and
    ``d = 2^(e - 128)``; with ``row_scale`` there is one float32 ``d`` for a whole row.
    Sources: the block structures of GGUF, as documented by the ``gguf`` package's ``quants.py``; for mxfp4 the OCP
    Microscaling Formats specification, version 1.0; for int8_channel the ``compressed-tensors`` package, whose int8
    (``int-quantized``) is signed: here u = value + 128, and ``file_bytes`` leaves out the scale of the row.
    """

    bits: int
    group: int  # consecutive k that share a scale; 1 for float formats
    offset: int  # what the unsigned stored integer exceeds the signed value by
    has_min: bool
    superblock: int  # consecutive k that share float16 super-scales; 0 when scales are float16 per group
    file_block: int  # elements per block in a model file
    file_bytes: int  # bytes per block in a model file
    table: tuple[int, ...] = ()  # u of each stored code; empty: the code itself
    e8m0: bool = False  # scales are bytes, exponents of two
    row_scale: bool = False  # one float32 scale for all k of a row; ``group`` is then only what values are packed by

    @property
    def bits_per_weight(self) -> float:
        return 8.0 * self.file_bytes / self.file_block


# Twice the values of a 4-bit float with 2 bits of exponent and 1 of mantissa (e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and
# their negatives), so that they are integers, plus 12, so that none is negative.
_E2M1 = tuple(12 + sign * twice for sign in (1, -1) for twice in (0, 1, 2, 3, 4, 6, 8, 12))

TRAITS = {
    WeightFormat.F32: FormatTraits(32, 1, 0, False, 0, 1, 4),
    WeightFormat.F16: FormatTraits(16, 1, 0, False, 0, 1, 2),
    WeightFormat.BF16: FormatTraits(16, 1, 0, False, 0, 1, 2),
    WeightFormat.Q8_0: FormatTraits(8, 32, 128, False, 0, 32, 34),
    WeightFormat.Q4_0: FormatTraits(4, 32, 8, False, 0, 32, 18),
    WeightFormat.Q4_1: FormatTraits(4, 32, 0, True, 0, 32, 20),
    WeightFormat.Q4_K: FormatTraits(4, 32, 0, True, 256, 256, 144),
    WeightFormat.Q5_K: FormatTraits(5, 32, 0, True, 256, 256, 176),
    WeightFormat.Q6_K: FormatTraits(6, 16, 32, False, 256, 256, 210),
    WeightFormat.MXFP4: FormatTraits(4, 32, 12, False, 0, 32, 17, _E2M1, True),
    WeightFormat.INT8_CHANNEL: FormatTraits(8, 32, 128, False, 0, 32, 32, row_scale=True),
}
