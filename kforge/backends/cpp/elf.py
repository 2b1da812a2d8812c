"""The ELF half of admission: a shared object that needs nothing, exports the entry points and has no writable data.

Only program headers and the dynamic segment are believed: they are what a loader would use. Section headers are not.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationTable
from elftools.elf.segments import Segment as ElfSegment

from kforge.core.image import PAGE, Relocation, Segment

ENTRY = "kforge_kernel"
SCRATCH = "kforge_scratch_bytes"
MAX_BYTES = 16 << 20

_TAGS = {"DT_NULL", "DT_HASH", "DT_GNU_HASH", "DT_STRTAB", "DT_SYMTAB", "DT_STRSZ", "DT_SYMENT", "DT_RELA",
         "DT_RELASZ", "DT_RELAENT", "DT_RELACOUNT", "DT_FLAGS", "DT_FLAGS_1", "DT_BIND_NOW"}
# The second line's only describe bytes of others; the loader looks at none of them.
_SEGMENTS = {"PT_LOAD", "PT_DYNAMIC", "PT_GNU_STACK", "PT_GNU_RELRO", "PT_PHDR", "PT_NULL",
             "PT_NOTE", "PT_GNU_PROPERTY", "PT_GNU_EH_FRAME", "PT_GNU_SFRAME"}
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_RELATIVE = {"x86_64": 8, "aarch64": 1027}  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE
_X, _W, _R = 1, 2, 4


@dataclass(frozen=True)
class Rules:
    """What one kind of artifact may have beside code: exported functions whose names begin with ``prefix`` (where it is
    empty, the native ABI's two), and ``libraries`` that it names but, as no symbol is undefined, takes nothing from."""

    prefix: str = ""
    libraries: frozenset[str] = frozenset()

    def exports(self, name: str) -> bool:
        return name.startswith(self.prefix) if self.prefix else name in (ENTRY, SCRATCH)


NATIVE = Rules()


class Refused(Exception):
    """Why an artifact is not pure computation: one sentence."""


@dataclass(frozen=True)
class Layout:
    """What a loader needs, before the code has been looked at. Addresses are relative to the image's base."""

    machine: str  # "x86_64" or "aarch64"
    entry: int
    scratch_entry: int  # -1 when absent
    segments: tuple[Segment, ...]
    relocations: tuple[Relocation, ...]
    exports: tuple[tuple[str, int], ...] = ()  # every exported function, by name


def read(data: bytes, rules: Rules = NATIVE) -> Layout:
    """Raises Refused. Whatever the parser throws at a malformed, perhaps hostile file is a refusal, too."""
    if len(data) > MAX_BYTES:
        raise Refused(f"the artifact is larger than {MAX_BYTES} bytes")
    try:
        return _read(ELFFile(io.BytesIO(data)), data, rules)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"malformed ELF file: {type(error).__name__}: {error}") from None


def _read(elf: ELFFile, data: bytes, rules: Rules) -> Layout:
    head = elf.header
    machine = _MACHINES.get(str(head["e_machine"]), "")
    if elf.elfclass != 64 or not elf.little_endian or head["e_type"] != "ET_DYN" or not machine:
        raise Refused("not a 64-bit little-endian shared object for x86-64 or AArch64")
    parts = list(elf.iter_segments())
    for part in parts:
        if part["p_type"] not in _SEGMENTS:
            raise Refused(f"a segment of type {part['p_type']} (thread-local data, interpreter, ...) is not allowed")
        if part["p_type"] == "PT_GNU_STACK" and part["p_flags"] & _X:
            raise Refused("it asks for an executable stack")
    segments = _load(parts, data)
    dynamic = [part for part in parts if isinstance(part, DynamicSegment)]
    if len(dynamic) != 1:
        raise Refused("it has no dynamic segment, or several")
    _check_tags(dynamic[0], rules)
    exports = _exports(dynamic[0], rules)
    code = [s for s in segments if s.executable]
    for name, address in exports.items():
        if not any(s.address <= address < s.address + len(s.data) for s in code):
            raise Refused(f"{name} does not lie in executable bytes")
    if not rules.prefix and ENTRY not in exports:
        raise Refused(f"it does not export {ENTRY}")
    relocations = _relocations(dynamic[0], segments, _RELATIVE[machine])
    return Layout(machine, exports.get(ENTRY, -1), exports.get(SCRATCH, -1), segments, relocations,
                  tuple(exports.items()))


def _load(parts: list[ElfSegment], data: bytes) -> tuple[Segment, ...]:
    relro = [(p["p_vaddr"], p["p_vaddr"] + p["p_memsz"]) for p in parts if p["p_type"] == "PT_GNU_RELRO"]
    segments: list[Segment] = []
    end = 0
    for part in parts:
        if part["p_type"] != "PT_LOAD" or part["p_memsz"] == 0:
            continue
        flags, first, size, file_size = part["p_flags"], part["p_vaddr"], part["p_memsz"], part["p_filesz"]
        last = first + size
        if flags & _W and flags & _X:
            raise Refused("a segment is both writable and executable")
        if not flags & _R:
            raise Refused("a segment cannot be read")
        if flags & _W and not any(low <= first and last <= high for low, high in relro):
            raise Refused("it has writable data (.data or .bss): a kernel keeps no state")
        if file_size > size or part["p_offset"] + file_size > len(data) or last > MAX_BYTES:
            raise Refused("a segment lies outside the file or is too large")
        address = first // PAGE * PAGE
        if address < end:
            raise Refused("two segments share a page, or are out of order")
        end = -(-last // PAGE) * PAGE
        content = bytes(first - address) + data[part["p_offset"]: part["p_offset"] + file_size]
        segments.append(Segment(address, content, last - address, bool(flags & _X)))
    if not any(s.executable for s in segments):
        raise Refused("it has no code")
    return tuple(segments)


def _check_tags(dynamic: DynamicSegment, rules: Rules) -> None:
    for tag in dynamic.iter_tags():
        name = str(tag.entry.d_tag)
        if name == "DT_NEEDED" and getattr(tag, "needed", "") in rules.libraries:
            continue
        if name == "DT_NEEDED":
            raise Refused("it needs a library")
        if name in {"DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY"}:
            raise Refused("it has constructors or destructors")
        if name not in _TAGS:
            raise Refused(f"dynamic entry {name} is not allowed")
        if name == "DT_FLAGS" and tag.entry.d_val & ~0x8:  # only DF_BIND_NOW
            raise Refused("it asks for text relocations, static TLS or symbolic binding")


def _exports(dynamic: DynamicSegment, rules: Rules) -> dict[str, int]:
    exports: dict[str, int] = {}
    for index, symbol in enumerate(dynamic.iter_symbols()):
        kind = symbol["st_info"]["type"]
        if index == 0:
            continue
        if symbol["st_shndx"] == "SHN_UNDEF":
            raise Refused(f"undefined symbol {symbol.name}: a kernel links nothing")
        if not rules.exports(symbol.name):
            may = f"names that begin with {rules.prefix}" if rules.prefix else f"only {ENTRY} and {SCRATCH}"
            raise Refused(f"it exports {symbol.name}; {may} may be exported")
        if kind != "STT_FUNC":
            raise Refused(f"{symbol.name} is {kind}, not a plain function")
        if symbol.name in exports:
            raise Refused(f"{symbol.name} is exported twice")
        exports[symbol.name] = symbol["st_value"]
    return exports


def _relocations(dynamic: DynamicSegment, segments: tuple[Segment, ...], relative: int) -> tuple[Relocation, ...]:
    found = []
    end = max(s.address + s.memory_bytes for s in segments)
    for table in dynamic.get_relocation_tables().values():
        assert isinstance(table, RelocationTable)  # RELR is not among the allowed tags
        for entry in table.iter_relocations():
            if not entry.is_RELA() or entry["r_info_type"] != relative or entry["r_info_sym"] != 0:
                raise Refused(f"relocation of type {entry['r_info_type']}: only RELATIVE ones are allowed")
            address, addend = entry["r_offset"], entry["r_addend"]
            if not any(s.address <= address and address + 8 <= s.address + len(s.data) and not s.executable
                       for s in segments):
                raise Refused("a relocation changes bytes that are not constant data")
            if not 0 <= addend <= end:
                raise Refused("a relocation points outside the image")
            found.append(Relocation(address, addend))
    return tuple(found)
