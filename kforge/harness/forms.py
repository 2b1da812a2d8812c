"""How a case lays a tensor into its slot: densely, or with its rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kforge.core.dtypes import DType
from kforge.harness.slots import ALIGN, round_up
from kforge.operators.base import DENSE, Residency, TensorSpec
from kforge.operators.numerics import numpy_dtype

_GAP_ELEMENTS = 16  # between the rows of a strided tensor


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements, row-major."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


@dataclass(frozen=True)
class Form:
    """A tensor whose rows lie ``pitch`` elements apart; dense when ``pitch`` is 0."""

    spec: TensorSpec
    pitch: int

    @classmethod
    def of(cls, spec: TensorSpec, strided: bool) -> Form:
        """Strided only as in the engine: activations are slices of wider tensors; weights and caches never are."""
        activations = len(spec.shape) == 2 and spec.layout == DENSE and spec.residency is Residency.HOT
        if not (strided and activations and spec.dtype is DType.F32):
            return cls(spec, 0)
        return cls(spec, round_up(spec.shape[1], ALIGN // spec.dtype.size) + _GAP_ELEMENTS)

    @property
    def bytes(self) -> int:
        """With the gap after the last row."""
        return self.spec.shape[0] * self.pitch * self.spec.dtype.size if self.pitch else self.spec.bytes

    @property
    def strides(self) -> tuple[int, ...]:
        return (self.pitch, 1) if self.pitch else dense_strides(self.spec.shape)

    def elements(self, memory: np.ndarray) -> np.ndarray:
        """The tensor, as a view of its ``bytes`` of memory (u8)."""
        flat = memory.view(numpy_dtype(self.spec.dtype))
        if self.pitch:
            return flat.reshape(-1, self.pitch)[:, : self.spec.shape[1]]
        return flat.reshape(self.spec.shape)

    def gaps(self, memory: np.ndarray) -> np.ndarray:
        """What lies between the rows, as a view of u8; empty when dense."""
        if not self.pitch:
            return memory[:0]
        size = self.spec.dtype.size
        return memory.reshape(-1, self.pitch * size)[:, self.spec.shape[1] * size :]
