"""Experts in a folder of safetensors files, which families store each in their own way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models.folder_tensors import FolderTensors, Stored
from kforge.models.roles import Matrix, Role

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
    """Three float matrices for each expert, as Qwen3-MoE has them."""

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
        return self._tensors.floats(self.name(role, layer)).format

    def matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight:
        from kforge.operators.layouts import concat

        return concat([stored.matrix() for stored in self._all(role, layer)])

    def vector(self, role: Role, layer: int | None) -> np.ndarray:
        raise NotImplementedError("such experts have no biases")

    def _all(self, role: Role, layer: int | None) -> list[Stored]:
        return [self._tensors.floats(self.name(role, layer, expert)) for expert in range(self._count)]
