"""What an NVIDIA binary (cubin, an ELF file) says of itself, and whether it is pure computation.

Sources: the sections' meaning from NVIDIA's "CUDA Binary Utilities" (nvdisasm, cuobjdump, their ELF dumps name the
attributes of ``.nv.info``); offsets verified against ``cuobjdump -elf`` and ``-res-usage`` of CUDA 12.8 and 13.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Collection
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kforge.core.trial import Failure, FailureClass

_CUDA = 190  # e_machine
_REGISTERS, _FRAME, _PARAMETER = 0x2F, 0x11, 0x17  # attributes of .nv.info
_VALUE_FOLLOWS = 4  # format: a length, then that many bytes
_RESERVED = (".nv.reservedSmem", "__nv_reservedSMEM")  # the loader's own, of a few bytes of shared memory
_REFLECTED = b"__CUDA_FTZ"  # a question of LLVM's libdevice that the compiler answered; its text stays behind, unused
# What a kernel may consist of, by the beginning of sections' names; all else is refused, device globals first.
_SECTIONS = (".text.", ".nv.info", ".nv.constant", ".nv.shared.", ".nv.callgraph", ".nv.rel.action", ".nv.compat",
             ".nv.capmerc", ".nv.merc", ".note", ".debug", ".nv_debug", ".rel", ".shstrtab", ".strtab", ".symtab",
             ".nv.prototype", ".nv.uft", ".nv.udt")


@dataclass(frozen=True)
class Facts:
    """``parameters``: bytes of each; ``spill_bytes``: of a thread's stack, which holds nothing else in our kernels;
    ``shared_bytes``: static, of a group; ``text_bytes``: of machine code."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    parameters: tuple[int, ...]
    text_bytes: int


def examine(data: bytes, kernel: str, arch: str, beside: Collection[str] = ()) -> Facts | Failure:
    """The kernel's facts, or ADMISSION: another architecture, device globals, undefined symbols, a kernel that is
    neither this one nor among ``beside``."""
    try:
        elf = ELFFile(io.BytesIO(data))
        return _examined(elf, kernel, arch, {kernel, *beside})
    except (ELFError, struct.error, KeyError, ValueError, AttributeError, UnicodeDecodeError, IndexError) as error:
        return _refused(f"it is no ELF file that a driver could load: {error}")


def _examined(elf: ELFFile, kernel: str, arch: str, kernels: set[str]) -> Facts | Failure:
    header = elf.header
    if header.e_machine not in ("EM_CUDA", _CUDA):
        return _refused("it is not for an NVIDIA GPU")
    flags, abi = int(header.e_flags), int(header.e_ident["EI_ABIVERSION"])
    found = f"sm_{flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF}"
    if found != arch:
        return _refused(f"it is for {found}, not {arch}")
    sections = {section.name: section for section in elf.iter_sections()}
    for name, section in sections.items():
        if name == ".nv.global.init" and section.data().rstrip(b"\0") == _REFLECTED:
            continue
        if name.startswith(".nv.global"):
            return _refused(f"it has variables in device memory ({name}), which outlive a call")
        if name and not name.startswith(_SECTIONS):
            return _refused(f"it has a section of an unknown kind, {name}")
    texts = [name for name in sections if name.startswith(".text.")]
    if set(texts) != {f".text.{name}" for name in kernels}:
        return _refused(f"its code is {', '.join(texts) or 'none'}, not {', '.join(sorted(kernels))}")
    own_symbol = -1
    for section in sections.values():
        if isinstance(section, SymbolTableSection):
            for index, symbol in enumerate(section.iter_symbols()):
                if symbol.name == kernel:
                    own_symbol = index
                if symbol.name and symbol["st_shndx"] == "SHN_UNDEF" and not symbol.name.startswith(_RESERVED):
                    return _refused(f"it calls {symbol.name}, which it does not contain")
    whole = _attributes(sections[".nv.info"].data())
    own = _attributes(sections[f".nv.info.{kernel}"].data())
    shared = sections.get(f".nv.shared.{kernel}")
    sizes = {}
    for body in own.get(_PARAMETER, ()):
        _, ordinal, _, word = struct.unpack("<IHHI", body)
        sizes[ordinal] = word >> 18
    if sorted(sizes) != list(range(len(sizes))):
        return _refused("its parameters are not numbered one after another")
    registers, frame = (dict(struct.unpack("<II", body) for body in whole[which]) for which in (_REGISTERS, _FRAME))
    return Facts(registers[own_symbol], frame[own_symbol],
                 int(shared["sh_size"]) if shared is not None else 0,
                 tuple(sizes[i] for i in range(len(sizes))), int(sections[f".text.{kernel}"]["sh_size"]))


def _attributes(data: bytes) -> dict[int, list[bytes]]:
    """Of a ``.nv.info`` section: format, attribute, and a value of 16 bits or the length of what follows."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at + 4 <= len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == _VALUE_FOLLOWS:
            found.setdefault(attribute, []).append(data[at:at + value])
            at += value
    return found


def _refused(why: str) -> Failure:
    return Failure(FailureClass.ADMISSION, f"the binary is refused: {why}")
