"""Experts in a folder of safetensors files, which families store each in their own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models.folder_tensors import FolderTensors, Stored
from kforge.models.roles import Matrix, Role, Vector

if TYPE_CHECKING:
    import numpy as np

    from kforge.operators.layouts import QuantizedWeight


_PER_EXPERT = {Matrix.EXPERT_GATE: "gate_proj", Matrix.EXPERT_UP: "up_proj", Matrix.EXPERT_DOWN: "down_proj"}


class FolderExperts(Protocol):
    """Tensors whose role is of experts. Raises KforgeError for one that is missing or misshapen."""

    def name(self, role: Role, layer: int | None) -> str: ...

    def shape(self, role: Role, layer: int | None) -> tuple[int, ...]: ...

    def format(self, role: Matrix, layer: int | None) -> WeightFormat: ...

    def matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight:
        """[experts * N, K]."""

    def vector(self, role: Role, layer: int | None) -> np.ndarray:
        """float32 [experts, N]."""


class PerExpert:
    """Three matrices for each expert, as Qwen3-MoE has them."""

    def __init__(self, tensors: FolderTensors, count: int) -> None:
        self._tensors, self._count = tensors, count

    def name(self, role: Role, layer: int | None, expert: int = 0) -> str:
        return f"model.layers.{layer}.mlp.experts.{expert}.{_PER_EXPERT[Matrix(role)]}.weight"

    def shape(self, role: Role, layer: int | None) -> tuple[int, ...]:
        first, *others = self._all(role, layer)
        for other in others:
            if (other.shape, other.dtype) != (first.shape, first.dtype):
                raise KforgeError(f"{other.file}: tensor '{other.name}' is {other.dtype} {list(other.shape)}, but the "
                                  f"layer's first expert has {first.dtype} {list(first.shape)}.")
        return (self._count, *first.shape)

    def format(self, role: Matrix, layer: int | None) -> WeightFormat:
        return self._tensors.matrix(self.name(role, layer)).format

    def matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight:
        from kforge.operators.layouts import concat

        return concat([stored.matrix() for stored in self._all(role, layer)])

    def vector(self, role: Role, layer: int | None) -> np.ndarray:
        raise KforgeError("experts that are stored one by one have no biases")

    def _all(self, role: Role, layer: int | None) -> list[Stored]:
        return [self._tensors.matrix(self.name(role, layer, expert)) for expert in range(self._count)]


class Mxfp4Experts:
    """Of GPT-OSS: two tensors for all experts, whose numbers of 4 bits and scales are stored apart. Rows of gate and up
    alternate, gate first; biases are floats."""

    def __init__(self, tensors: FolderTensors) -> None:
        self._tensors = tensors

    def name(self, role: Role, layer: int | None) -> str:
        return f"{self._stem(role, layer)}_{'blocks' if isinstance(role, Matrix) else 'bias'}"

    def shape(self, role: Role, layer: int | None) -> tuple[int, ...]:
        if not isinstance(role, Matrix):
            return self.vector(role, layer).shape
        blocks, scales = self._parts(role, layer)
        if blocks.ndim != 4 or blocks.shape[:3] != scales.shape or blocks.shape[3] != 16:
            name = self.name(role, layer)
            raise KforgeError(f"{self._tensors[name].file}: tensor '{name}' has shape {list(blocks.shape)} with scales "
                              f"{list(scales.shape)}; [experts, rows, groups, 16] with [experts, rows, groups] was "
                              "expected.")
        return (*blocks.shape[:2], 32 * blocks.shape[2])

    def format(self, role: Matrix, layer: int | None) -> WeightFormat:
        return WeightFormat.MXFP4

    def matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight:
        from kforge.operators.weights import from_mxfp4_blocks

        return from_mxfp4_blocks(*self._parts(role, layer))

    def vector(self, role: Role, layer: int | None) -> np.ndarray:
        return self._own_rows(role, self._tensors.floats(self.name(role, layer)).values())

    def _parts(self, role: Role, layer: int | None) -> list[np.ndarray]:
        """Blocks and scales of the role's own rows, mapped."""
        found = [self._tensors[f"{self._stem(role, layer)}_{part}"] for part in ("blocks", "scales")]
        for stored in found:
            if stored.dtype != "U8":
                raise KforgeError(f"{stored.file}: tensor '{stored.name}' is stored as {stored.dtype}; U8 was "
                                  "expected.")
        return [self._own_rows(role, stored.data.reshape(stored.shape)) for stored in found]

    def _stem(self, role: Role, layer: int | None) -> str:
        down = role in (Matrix.EXPERT_DOWN, Vector.EXPERT_DOWN_BIAS)
        return f"model.layers.{layer}.mlp.experts.{'down' if down else 'gate_up'}_proj"

    @staticmethod
    def _own_rows(role: Role, rows: np.ndarray) -> np.ndarray:
        """[experts, rows, ...]: those of gate or of up where both are stored as one."""
        if role in (Matrix.EXPERT_GATE, Vector.EXPERT_GATE_BIAS):
            return rows[:, 0::2]
        return rows[:, 1::2] if role in (Matrix.EXPERT_UP, Vector.EXPERT_UP_BIAS) else rows
