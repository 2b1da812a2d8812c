"""The numbers of ``mxfp4``: 4-bit floats (e2m1) that share a power of two (e8m0) among 32 consecutive ones.

Source: OCP Microscaling Formats (MX) specification, version 1.0, sections 5.3.3, 5.4.1 and 6.3. A weight here is twice
the 4-bit float, an integer, times half of the scale: ``w = 2^(e - 128) * (u - 12)`` (``FormatTraits``). As doubling and
halving are exact, so is that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    import numpy as np

GROUP = 32
BIAS = 128  # of an exponent byte, the halving included
_NAN = 255
_LARGEST_EXPONENT = 2  # of a 4-bit float: 6 = 1.5 * 2^2
# Halfway between neighbours of 0, 0.5, 1, 1.5, 2, 3, 4, 6. A tie goes to the even code: up at every second one.
_HALFWAY = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


class Quantized(NamedTuple):
    """``codes`` uint8 [N, K], 0 to 15, the sign in bit 3; ``exponents`` uint8 [N, K / 32]."""

    codes: np.ndarray
    exponents: np.ndarray


def scales(exponents: np.ndarray) -> np.ndarray:
    """float32, shaped as ``exponents``: 2^(e - 128), of which the two smallest are denormal."""
    import numpy as np

    e = exponents.astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << np.minimum(e, 1), (np.maximum(e, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32)


def require_numbers(exponents: np.ndarray) -> None:
    """Raises KforgeError where an exponent is the format's NaN: nothing that a model would be trained to."""
    if (exponents == _NAN).any():
        raise KforgeError("an mxfp4 weight has a scale of 255, which stands for NaN: the file is corrupt")


def quantize(values: np.ndarray) -> Quantized:
    """float32 [N, K], finite. Raises KforgeError when K is no multiple of 32 or a value is not finite."""
    import numpy as np

    if values.shape[1] % GROUP:
        raise KforgeError(f"mxfp4 needs rows of a multiple of {GROUP} elements, got {values.shape[1]}")
    if not np.isfinite(values).all():
        raise KforgeError("mxfp4 cannot hold a NaN or an infinity")
    groups = values.reshape(len(values), -1, GROUP).astype(np.float64)
    amax = np.abs(groups).max(axis=2)
    _, exponent = np.frexp(amax)  # amax = m 2^exponent with 0.5 <= m < 1
    power = np.clip(np.where(amax > 0, exponent - 1 - _LARGEST_EXPONENT, -127), -127, 127)
    size = np.abs(groups) * np.exp2(-power.astype(np.float64))[:, :, None]
    codes = np.zeros(groups.shape, np.uint8)
    for below, halfway in enumerate(_HALFWAY):
        codes += (size >= halfway) if below % 2 else (size > halfway)
    codes |= np.signbit(groups).astype(np.uint8) << 3
    return Quantized(codes.reshape(values.shape), (power + 127).astype(np.uint8))
