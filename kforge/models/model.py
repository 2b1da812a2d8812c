"""An opened model: its configuration, its tensors by role, its tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models.config import ModelConfig
from kforge.models.roles import Matrix, Role, Vector, role_of, roles_of, shape_of

if TYPE_CHECKING:
    import numpy as np

    from kforge.models.tokenizer import Tokenizer
    from kforge.operators.layouts import QuantizedWeight


class Model(ABC):
    """Weights stay in the mapped file until asked for. Raises ``KforgeError`` for a missing or misshapen tensor."""

    path: Path
    config: ModelConfig

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    def format(self, role: Matrix, layer: int | None = None) -> WeightFormat:
        """How the file stores a matrix; a tied head is stored as the embedding table is."""
        return self._stored_format(self._untie(role), layer)

    @overload
    def tensor(self, role: Matrix, layer: int | None = None) -> QuantizedWeight: ...
    @overload
    def tensor(self, role: Vector, layer: int | None = None) -> np.ndarray: ...
    @overload
    def tensor(self, role: str, layer: int | None = None) -> QuantizedWeight | np.ndarray: ...
    def tensor(self, role: Role | str, layer: int | None = None) -> QuantizedWeight | np.ndarray:
        """A matrix as the file stores it, or a vector as float32. ``layer`` is None for embed, final_norm and head."""
        role = role_of(role)
        if isinstance(role, Vector):
            return self._vector(role, layer)
        return self._matrix(self._untie(role), layer)

    def check(self) -> None:
        """That every tensor is there, in a known format and the right shape; reads no weights."""
        for ref in roles_of(self.config):
            found, wanted = self._stored_shape(ref.role, ref.layer), shape_of(self.config, ref.role)
            if found != wanted:
                raise KforgeError(f"{self.path}: tensor '{self._name(ref.role, ref.layer)}' has shape {list(found)}, "
                                  f"{list(wanted)} was expected.")
            if isinstance(ref.role, Matrix):
                self._stored_format(ref.role, ref.layer)

    def _untie(self, role: Matrix) -> Matrix:
        return Matrix.EMBED if role is Matrix.HEAD and self.config.tied_head else role

    @abstractmethod
    def _name(self, role: Role, layer: int | None) -> str: ...

    @abstractmethod
    def _stored_shape(self, role: Role, layer: int | None) -> tuple[int, ...]: ...

    @abstractmethod
    def _stored_format(self, role: Matrix, layer: int | None) -> WeightFormat: ...

    @abstractmethod
    def _matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight: ...

    @abstractmethod
    def _vector(self, role: Vector, layer: int | None) -> np.ndarray: ...

    @abstractmethod
    def _make_tokenizer(self) -> Tokenizer: ...
