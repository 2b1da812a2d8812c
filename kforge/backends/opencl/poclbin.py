"""Admission of what PoCL's compiler leaves for a processor: machine code of the host, held to what a native kernel is.

PoCL's binary is a list of files that its runtime unpacks and loads with the C library's loader. It is read here the way
the runtime reads it (version 9, ``lib/CL/pocl_binary.c`` of PoCL 3.1), every file must be one that a launch needs, and
every shared object must be pure computation by the native backend's own rules (``kforge.backends.cpp``). Binaries of
other drivers hold no code of the host's, as far as anybody knows; they are not looked into.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kforge.backends.cpp import code, elf
from kforge.backends.cpp.code import CodeFacts
from kforge.backends.cpp.elf import Refused, Rules
from kforge.core.launch import Launch

MAGIC = b"poclbin\0"
VERSION = 9
_HASH_BYTES = 41  # a SHA-1 in hexadecimal, and a zero
_RULES = Rules(prefix="_pocl_kernel_", libraries=frozenset({"libm.so.6", "libc.so.6"}))
_PROGRAM = "/program.bc"  # the compiler's own form of the program: a runtime that has all objects does not compile it


@dataclass(frozen=True)
class File:
    path: str
    data: bytes


def is_poclbin(binary: bytes) -> bool:
    return binary.startswith(MAGIC)


def admit(binary: bytes, launches: Sequence[Launch]) -> CodeFacts:
    """What the code of a kernel's launches comes to. Raises Refused with one sentence."""
    wanted = {f"/{launch.entry}/0-0-0/{launch.entry}.so" for launch in launches}
    found: dict[str, bytes] = {}
    for file in files(binary):
        if file.path in found:
            raise Refused(f"the binary has {file.path} twice")
        if file.path != _PROGRAM and file.path not in wanted:
            raise Refused(f"the binary has {file.path}, which belongs to no launch")
        found[file.path] = file.data
    if missing := sorted(wanted - set(found)):
        raise Refused(f"the binary lacks {missing[0]}: it was not built for its launches")
    facts = [_admit(found[path], path) for path in sorted(wanted)]
    mix: dict[str, int] = {}
    for one in facts:
        for name, count in one.mix:
            mix[name] = mix.get(name, 0) + count
    return CodeFacts(sum(f.text_bytes for f in facts), sum(f.spills for f in facts),
                     tuple(sorted(mix.items(), key=lambda item: -item[1])))


def files(binary: bytes) -> list[File]:
    """Every file that the runtime would unpack. Raises Refused for what is not read to the last byte."""
    try:
        return _Reader(binary).files()
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise Refused(f"the binary is damaged: {error}") from None


def _admit(data: bytes, path: str) -> CodeFacts:
    try:
        layout = elf.read(data, _RULES)
        return code.sweep(layout.segments, tuple(address for _, address in layout.exports))
    except Refused as refused:
        raise Refused(f"{path}: {refused}") from None


class _Reader:
    def __init__(self, binary: bytes) -> None:
        self._data, self._at = binary, 0

    def files(self) -> list[File]:
        magic, _, version, kernels, _, roots = struct.unpack("<8sQIIQI", self._take(36))
        if magic != MAGIC or version != VERSION:
            raise Refused(f"the binary is of a PoCL format that is not known here (version {version}, not {VERSION})")
        if max(kernels, roots) > 64:
            raise Refused("the binary has too many kernels")
        self._take(_HASH_BYTES)
        found: list[File] = []
        for _ in range(roots):
            found += self._list(self._number("<Q"))
        for _ in range(kernels):
            begin = self._at
            size, of_files, _ = struct.unpack("<QQI", self._take(20))
            if not 20 <= size - of_files <= size:
                raise Refused("the binary is damaged: sizes of a kernel")
            self._at = begin
            self._take(size - of_files)
            found += self._list(of_files)
        if self._at != len(self._data):
            raise Refused("the binary goes on behind its end")
        return found

    def _list(self, size: int) -> list[File]:
        end = self._at + size
        found = []
        while self._at < end:
            path = self._take(self._number("<I")).decode("ascii")
            found.append(File(path, self._take(self._number("<I"))))
        if self._at != end:
            raise Refused("the binary is damaged: a list of files")
        return found

    def _number(self, format: str) -> int:
        return int(struct.unpack(format, self._take(struct.calcsize(format)))[0])

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise ValueError("cut short")
        self._at += size
        return self._data[self._at - size : self._at]
