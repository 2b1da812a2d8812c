"""The tensors of a folder: model*.safetensors with or without an index."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models.folder_config import read_json

if TYPE_CHECKING:
    from kforge.operators.layouts import QuantizedWeight

FORMATS = {"F32": WeightFormat.F32, "F16": WeightFormat.F16, "BF16": WeightFormat.BF16}
SCALE = "_scale"  # what the name of an int8 matrix's scales ends in, behind the matrix's own


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: ``data`` is its bytes, mapped. ``scale``: of an int8 matrix, one float for each row."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray
    scale: Stored | None = None

    @property
    def format(self) -> WeightFormat:
        """Of floats, or of an int8 matrix with its scales."""
        return WeightFormat.INT8_CHANNEL if self.scale else FORMATS[self.dtype]

    def matrix(self) -> QuantizedWeight:
        """A two-dimensional tensor as it is stored. Raises KforgeError for int8 weights that make no sense."""
        from kforge.operators.layouts import from_gguf
        from kforge.operators.weights import from_int8_channel

        if self.scale:
            try:
                return from_int8_channel(self.data.view(np.int8).reshape(self.shape), self.scale.values())
            except KforgeError as error:
                raise KforgeError(f"{self.file}: tensor '{self.name}': {error}") from None
        # A float matrix is the same row-major bytes here as in a GGUF file.
        return from_gguf(self.data, self.format, *self.shape)

    def values(self) -> np.ndarray:
        """float32 of the tensor's shape."""
        match self.format:
            case WeightFormat.BF16:
                wide = (self.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
            case WeightFormat.F32:
                wide = self.data.view("<f4").astype(np.float32)
            case _:
                wide = self.data.view("<f2").astype(np.float32)
        return wide.reshape(self.shape)


class FolderTensors:
    """All tensors by name; ``int8``: matrices may be int8 with scales. Raises KforgeError for a file that is missing
    or corrupt."""

    def __init__(self, path: Path, int8: bool = False) -> None:
        self._path, self._int8 = path, int8
        self._tensors = {name: t for file in _files(path) for name, t in _tensors(file).items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Stored:
        """Raises KforgeError for a tensor that there is not."""
        if name not in self._tensors:
            raise KforgeError(f"{self._path}: tensor '{name}' is missing.")
        return self._tensors[name]

    def matrix(self, name: str) -> Stored:
        """The same, refusing what is neither floats nor, in a folder that has them, int8 with scales."""
        stored = self[name]
        if not self._int8 or stored.dtype != "I8":
            return self.floats(name)
        scale = self.floats(name + SCALE)
        if stored.shape and scale.shape not in ((stored.shape[0], 1), stored.shape[:1]):
            raise KforgeError(f"{scale.file}: tensor '{scale.name}' has shape {list(scale.shape)}; one scale a row, "
                              f"[{stored.shape[0]}, 1], was expected.")
        return replace(stored, scale=scale)

    def floats(self, name: str) -> Stored:
        """The same, refusing what is not stored as floats."""
        stored = self[name]
        if stored.dtype not in FORMATS:
            raise KforgeError(f"{stored.file}: tensor '{name}' is stored as {stored.dtype}, which is not supported "
                              f"(supported: {', '.join(FORMATS)}).")
        return stored


def _files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise KforgeError(f"{index}: 'weight_map' must name files of this folder.")
        return [path / name for name in sorted(set(names.values()))]
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise KforgeError(f"{path}: the folder holds no model*.safetensors.")
    return files


def _tensors(file: Path) -> dict[str, Stored]:
    """The package checks the header; it is read again here because the package hands out no mapped bfloat16."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            data = np.memmap(file, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise KforgeError(f"{file}: no such file.") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise KforgeError(f"{file}: corrupt or truncated ({error}).") from error
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:8 + length].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, end = (8 + length + o for o in entry["data_offsets"])
            tensors[name] = Stored(name, file, entry["dtype"], tuple(entry["shape"]), data[first:end])
    return tensors
