"""The header of a GGUF file: metadata and where each tensor lies.

Types and block sizes come from the ``gguf`` package. Its own reader makes two numpy views for every string, which takes
seconds for a vocabulary with merges; this one walks the header once and checks every length against the file's size.
Source of the format: the GGUF specification, version 3 (2 differs in nothing that is read here).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from kforge.core.errors import KforgeError

_SCALARS = {
    GGUFValueType.UINT8: "<B", GGUFValueType.INT8: "<b", GGUFValueType.UINT16: "<H", GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I", GGUFValueType.INT32: "<i", GGUFValueType.FLOAT32: "<f", GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q", GGUFValueType.INT64: "<q", GGUFValueType.FLOAT64: "<d",
}
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32

Value = int | float | bool | str | list


@dataclass(frozen=True)
class TensorInfo:
    """``shape`` is row-major, outermost first (the file has it reversed); ``offset`` from the file's start."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class Header:
    fields: dict[str, Value]
    tensors: dict[str, TensorInfo]
    data: np.memmap  # the whole file as u8


def read_header(path: Path) -> Header:
    """Maps the file and reads its header. Raises ``KforgeError`` for anything that is not a whole GGUF file."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise KforgeError(f"{path}: no such file.") from None
    except (OSError, ValueError) as error:
        raise KforgeError(f"{path}: cannot be read ({error}).") from error
    try:
        return _Walk(path, data).header()
    except (struct.error, UnicodeDecodeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise KforgeError(f"{path}: the GGUF header is corrupt or truncated ({error}).") from error


class _Walk:
    def __init__(self, path: Path, data: np.memmap) -> None:
        self.path, self.data, self.view, self.at = path, data, memoryview(data.data), 0

    def header(self) -> Header:
        if bytes(self.view[:4]) != b"GGUF":
            raise KforgeError(f"{self.path}: not a GGUF file (it does not begin with 'GGUF').")
        self.at = 4
        version = self.scalar("<I")
        if version not in (2, 3):
            raise KforgeError(f"{self.path}: GGUF version {version} is not supported (2 and 3 are).")
        tensor_count, field_count = self.scalar("<Q"), self.scalar("<Q")
        fields: dict[str, Value] = {}
        for _ in range(field_count):
            key = self.text()
            fields[key] = self.value(GGUFValueType(self.scalar("<I")))
        infos = [self.tensor() for _ in range(tensor_count)]
        alignment = fields.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"alignment {alignment!r}")
        start = -(-self.at // alignment) * alignment
        tensors = {}
        for info in infos:
            offset = start + info.offset
            if offset + info.bytes > len(self.view):
                raise KforgeError(f"{self.path}: truncated: tensor '{info.name}' ends at byte {offset + info.bytes}, "
                                  f"the file has {len(self.view)}; fetch it again.")
            if info.name in tensors:
                raise ValueError(f"two tensors named {info.name}")
            tensors[info.name] = TensorInfo(info.name, info.type, info.shape, offset, info.bytes)
        return Header(fields, tensors, self.data)

    def scalar(self, code: str):
        value, = struct.unpack_from(code, self.view, self.at)
        self.at += struct.calcsize(code)
        return value

    def text(self) -> str:
        length = self.scalar("<Q")
        if length > len(self.view) - self.at:
            raise ValueError(f"a text of {length} bytes at byte {self.at}")
        self.at += length
        return str(self.view[self.at - length:self.at], "utf-8")

    def value(self, kind: GGUFValueType) -> Value:
        if kind is GGUFValueType.STRING:
            return self.text()
        if kind is not GGUFValueType.ARRAY:
            return self.scalar(_SCALARS[kind])
        item, count = GGUFValueType(self.scalar("<I")), self.scalar("<Q")
        if count > len(self.view) - self.at:
            raise ValueError(f"an array of {count} items at byte {self.at}")
        if item in (GGUFValueType.STRING, GGUFValueType.ARRAY):
            return [self.value(item) for _ in range(count)]
        code = _SCALARS[item]
        values = struct.unpack_from(f"<{count}{code[1]}", self.view, self.at)
        self.at += struct.calcsize(code) * count
        return list(values)

    def tensor(self) -> TensorInfo:
        name, dims = self.text(), self.scalar("<I")
        if not 1 <= dims <= _MAX_DIMS:
            raise ValueError(f"tensor '{name}' has {dims} dimensions")
        shape = tuple(self.scalar("<Q") for _ in range(dims))[::-1]
        kind = GGMLQuantizationType(self.scalar("<I"))
        block, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise ValueError(f"tensor '{name}' has rows of {shape[-1]}, not a multiple of {kind.name}'s {block}")
        return TensorInfo(name, kind, shape, self.scalar("<Q"), math.prod(shape) // block * size)
