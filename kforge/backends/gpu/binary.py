"""A GPU artifact's bytes: binaries and how they are launched in one self-describing container. Reading it is data only.

    magic "KFGPU1\\n\\0", length of the header (u32, little endian), header (JSON), binaries one behind the other
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field

from kforge.core.launch import Argument, ArgumentKind, Launch, LaunchError, names

_MAGIC = b"KFGPU1\n\0"
_MOST_HEADER = 1 << 20
MOST_BYTES = 64 << 20  # of an artifact
_KINDS = ("cubin", "hsaco")


class BinaryError(ValueError):
    """Bytes that are no container of ours, or a damaged one. The sentence says what is wrong."""


@dataclass(frozen=True)
class Entry:
    """One kernel with the binary that it lies in.

    ``parameters``: bytes of each kernel parameter; those behind a launch's arguments are null pointers. ``warps`` of
    ``warp`` threads make a group; ``shared_bytes`` is the dynamic shared memory of a launch. ``resources``: what the
    binary says of itself ("registers", "spill_bytes", ...); ``mix``: instruction class -> count in the main loop.
    """

    name: str
    kind: str  # "cubin" or "hsaco"
    parameters: tuple[int, ...]
    warps: int
    warp: int
    shared_bytes: int
    resources: tuple[tuple[str, int], ...]
    mix: tuple[tuple[str, int], ...]
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class DeviceBinary:
    """All that launching needs: for which architecture, by which compiler, the kernels and their launches in order."""

    arch: str
    compiler: str
    entries: tuple[Entry, ...]
    launches: tuple[Launch, ...]

    def entry(self, launch: Launch) -> Entry:
        return next(entry for entry in self.entries if entry.name == launch.entry)

    def pack(self) -> bytes:
        header = {
            "arch": self.arch, "compiler": self.compiler,
            "entries": [{"name": e.name, "kind": e.kind, "parameters": e.parameters, "warps": e.warps, "warp": e.warp,
                         "shared_bytes": e.shared_bytes, "resources": e.resources, "mix": e.mix, "bytes": len(e.data),
                         "sha256": hashlib.sha256(e.data).hexdigest()} for e in self.entries],
            "launches": [{"entry": x.entry, "grid": x.grid, "block": x.block, "scratch": x.scratch,
                          "constants": x.constants, "warps": x.warps, "shared_bytes": x.shared_bytes,
                          "arguments": [[a.kind.value, a.name, a.dimension, a.multiple] for a in x.arguments]}
                         for x in self.launches]}
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        return b"".join([_MAGIC, struct.pack("<I", len(text)), text, *(e.data for e in self.entries)])


def unpack(data: bytes) -> DeviceBinary:
    """Raises BinaryError for anything that ``pack`` does not make."""
    start = len(_MAGIC) + 4
    if len(data) < start or not data.startswith(_MAGIC) or len(data) > MOST_BYTES:
        raise BinaryError("it does not begin as a GPU artifact does, or is too large")
    (length,) = struct.unpack_from("<I", data, len(_MAGIC))
    if length > _MOST_HEADER or start + length > len(data):
        raise BinaryError("its header is longer than it says or may be")
    try:
        header = json.loads(data[start:start + length])
        at = start + length
        entries = []
        for given in header["entries"]:
            entries.append(_entry(given, data[at:at + _count(given["bytes"])]))
            at += len(entries[-1].data)
        launches = tuple(_launch(given) for given in header["launches"])
        found = DeviceBinary(_text(header["arch"]), _text(header["compiler"]), tuple(entries), launches)
    except (ValueError, KeyError, TypeError, LaunchError, RecursionError) as error:
        raise BinaryError(f"its header is damaged: {str(error)[:200] or type(error).__name__}") from None
    if at != len(data):
        raise BinaryError("bytes are missing, or left over")
    if {launch.entry for launch in launches} != {entry.name for entry in entries} or not launches:
        raise BinaryError("its launches and kernels do not fit together")
    return found


def _entry(given: dict[str, object], data: bytes) -> Entry:
    if hashlib.sha256(data).hexdigest() != given["sha256"]:
        raise ValueError(f"the binary of {given['name']} is not what it was")
    kind = _text(given["kind"])
    if kind not in _KINDS:
        raise ValueError(f"a binary is {' or '.join(_KINDS)}, not {kind}")
    return Entry(_text(given["name"]), kind, tuple(_count(n) for n in _list(given["parameters"])),
                 _count(given["warps"]), _count(given["warp"]), _count(given["shared_bytes"]),
                 _counts(given["resources"]), _counts(given["mix"]), data)


def _launch(given: dict[str, object]) -> Launch:
    arguments = []
    for kind, name, dimension, multiple in map(_list, _list(given["arguments"])):
        arguments.append(Argument(ArgumentKind(_text(kind)), _text(name), _count(dimension), _count(multiple)))
    grid = tuple(_text(text) for text in _list(given["grid"]))
    block = tuple(_text(text) for text in _list(given["block"]))
    scratch = _text(given["scratch"])
    for text in (*grid, *block, scratch):
        names(text)  # nothing but arithmetic
    if not grid or max(len(grid), len(block)) > 3:
        raise ValueError("a grid has one to three dimensions")
    return Launch(_text(given["entry"]), grid, tuple(arguments), block, scratch, _counts(given["constants"]),
                  _count(given["warps"]), _count(given["shared_bytes"]))


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 500:
        raise TypeError(f"{str(value)[:50]!r} is no text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not -(1 << 62) < value < 1 << 62:
        raise TypeError(f"{str(value)[:50]!r} is no number")
    return value


def _counts(value: object) -> tuple[tuple[str, int], ...]:
    pairs = [_list(pair) for pair in _list(value)]
    return tuple((_text(name), _count(count)) for name, count in pairs)
