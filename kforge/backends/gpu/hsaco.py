"""What an AMD code object (hsaco, an ELF file) says of itself, and whether it is pure computation.

Sources: LLVM's "User Guide for AMDGPU Backend": "Code Object" (ELF header flags, sections, the note's MessagePack map
of code object version 5, hidden arguments).
"""

from __future__ import annotations

import io
from collections.abc import Collection
from dataclasses import dataclass

import msgpack
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kforge.core.trial import Failure, FailureClass

_AMDGPU = 224  # e_machine
_MACHINES = {0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950", 0x41: "gfx1100"}  # EF_AMDGPU_MACH
_WRITABLE, _LOADED = 1, 2  # sh_flags
_DYNAMIC = (".dynamic", ".relro_padding")  # writable only until it has been relocated
_HIDDEN = "hidden_"  # arguments that the runtime would have to provide: heaps, host calls, queues
_HARMLESS = ("hidden_none", "hidden_global_offset_x", "hidden_global_offset_y", "hidden_global_offset_z")


@dataclass(frozen=True)
class Facts:
    """``registers``: vector registers of a thread (a wavefront's lanes), accumulation registers included where they
    come from the same file; ``spill_bytes``: of a thread's private segment; ``shared_bytes``: static LDS."""

    registers: int
    scalar_registers: int
    accumulation_registers: int
    spill_bytes: int
    shared_bytes: int
    parameters: tuple[int, ...]
    wavefront: int
    threads: int  # the most of a group
    text_bytes: int


def examine(data: bytes, kernel: str, arch: str, beside: Collection[str] = ()) -> Facts | Failure:
    """The kernel's facts, or ADMISSION: another architecture, writable data, undefined symbols, hidden arguments, a
    kernel that is neither this one nor among ``beside``."""
    try:
        return _examined(ELFFile(io.BytesIO(data)), kernel, arch, {kernel, *beside})
    except (ELFError, KeyError, ValueError, TypeError, AttributeError, UnicodeDecodeError, IndexError,
            msgpack.exceptions.UnpackException) as error:
        return _refused(f"it is no code object that a driver could load: {error}")


def _examined(elf: ELFFile, kernel: str, arch: str, wanted: set[str]) -> Facts | Failure:
    if elf.header.e_machine not in ("EM_AMDGPU", _AMDGPU):
        return _refused("it is not for an AMD GPU")
    found = _MACHINES.get(int(elf.header.e_flags) & 0xFF, "another GPU")
    if found != arch:
        return _refused(f"it is for {found}, not {arch}")
    for section in elf.iter_sections():
        flags = int(section["sh_flags"])
        if flags & _WRITABLE and flags & _LOADED and section.name not in _DYNAMIC:
            return _refused(f"it has variables in device memory ({section.name}), which outlive a call")
        if isinstance(section, SymbolTableSection):
            for symbol in section.iter_symbols():
                if symbol.name and symbol["st_shndx"] == "SHN_UNDEF":
                    return _refused(f"it calls {symbol.name}, which it does not contain")
    kernels = {given[".name"]: given for given in _notes(elf)["amdhsa.kernels"]}
    if set(kernels) != wanted:
        return _refused(f"its kernels are {', '.join(map(str, kernels)) or 'none'}, not {', '.join(sorted(wanted))}")
    given = kernels[kernel]
    for argument in given[".args"]:
        if (kind := argument[".value_kind"]).startswith(_HIDDEN) and kind not in _HARMLESS:
            return _refused(f"it wants {kind} of the runtime, which pure computation does not need")
    if given.get(".uses_dynamic_stack"):
        return _refused("the size of its stack is not known before it runs")
    functions = {symbol.name: int(symbol["st_size"]) for section in elf.iter_sections()
                 if isinstance(section, SymbolTableSection) for symbol in section.iter_symbols()
                 if symbol["st_info"]["type"] == "STT_FUNC"}
    if kernel not in functions:
        return _refused("it has no code")
    return Facts(int(given[".vgpr_count"]), int(given[".sgpr_count"]), int(given.get(".agpr_count", 0)),
                 int(given[".private_segment_fixed_size"]), int(given[".group_segment_fixed_size"]),
                 tuple(int(argument[".size"]) for argument in given[".args"]), int(given[".wavefront_size"]),
                 int(given[".max_flat_workgroup_size"]), functions[kernel])


def _notes(elf: ELFFile) -> dict[str, list[dict]]:
    """The metadata note: a MessagePack map under the name AMDGPU, type 32."""
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOTE":
            continue
        data = section.data()
        size, length, kind = (int.from_bytes(data[i:i + 4], "little") for i in (0, 4, 8))
        if kind == 32 and data[12:12 + size] == b"AMDGPU\0":
            start = 12 + (size + 3) // 4 * 4
            return dict(msgpack.unpackb(data[start:start + length], strict_map_key=True))
    raise ValueError("it has no metadata")


def _refused(why: str) -> Failure:
    return Failure(FailureClass.ADMISSION, f"the binary is refused: {why}")
