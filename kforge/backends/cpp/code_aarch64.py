"""The code half of admission for AArch64: every executable word is decoded once, and must be pure computation.

Instructions are words of four bytes at multiples of four, so what runs is what was decoded wherever control goes inside
the image. Control flow and the system are decided by the bits themselves (Arm Architecture Reference Manual, "A64
instruction set encoding"), by a short list of what is allowed; elsewhere a word must decode, and not be of an extension
that does more than compute.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kforge.backends.cpp.elf import Refused
from kforge.backends.cpp.facts import CodeFacts, gates_in, require_landing
from kforge.core.image import Segment

# ldr x1, [x0, #64]; ldr x0, [x0, #56]; br x1: kf_barrier_gate of kforge/freestanding.h, to the byte.
BARRIER_GATE = struct.pack("<3I", 0xF9402001, 0xF9401C00, 0xD61F0020)

# Of the branches, exceptions and system instructions: name, mask, value. All others of that class are refused.
_ALLOWED = (
    ("jump", 0xFC000000, 0x14000000), ("call", 0xFC000000, 0x94000000), ("branch", 0xFF000010, 0x54000000),
    ("branch", 0x7E000000, 0x34000000),  # cbz, cbnz
    ("branch", 0x7E000000, 0x36000000),  # tbz, tbnz
    ("return", 0xFFFFFFFF, 0xD65F03C0),  # to the link register only
    ("trap", 0xFFE0001F, 0xD4200000),  # brk: what compilers put where control never comes
    ("nop", 0xFFFFFFFF, 0xD503201F), ("nop", 0xFFFFFFFF, 0xD503203F),  # nop, yield
    ("nop", 0xFFFFFF3F, 0xD503241F),  # bti
    ("barrier", 0xFFFFF0FF, 0xD503309F), ("barrier", 0xFFFFF0FF, 0xD50330BF),  # dsb, dmb
    ("barrier", 0xFFFFF0FF, 0xD50330DF), ("barrier", 0xFFFFF0FF, 0xD503305F),  # isb, clrex
)
# How the others are told to who wrote the kernel; the first that fits.
_REFUSED = (
    ("a system call", 0xFFE0001F, 0xD4000001), ("a call of the hypervisor", 0xFFE0001F, 0xD4000002),
    ("a call of the secure monitor", 0xFFE0001F, 0xD4000003), ("an exception", 0xFF000000, 0xD4000000),
    ("an indirect call", 0xFFFFFC1F, 0xD63F0000), ("an indirect jump", 0xFE000000, 0xD6000000),
    ("a system register", 0xFFD00000, 0xD5100000), ("a system instruction", 0xFF000000, 0xD5000000),
)
_INDIRECT = ("an indirect call", "an indirect jump")
# Extensions of other classes that do more than compute: pointer authentication, memory tags, 64-byte device accesses.
_KEYED = ("pac", "aut", "xpac", "ldraa", "ldrab")
_FORBIDDEN = frozenset(("irg", "gmi", "subp", "subps", "addg", "subg", "stg", "stzg", "st2g", "stz2g", "stgp", "stgm",
                        "stzgm", "ldg", "ldgm", "ld64b", "st64b", "st64bv", "st64bv0"))
_VECTOR = re.compile(r"\{? ?[vqdsh]\d")
_STACK = re.compile(r"\[(sp|x29)[,\]]")
_GROUPS = (
    ("fma", ("fmla", "fmls", "fmadd", "fmsub", "fnmadd", "fnmsub", "fmlal", "fmlsl")),
    ("dot product", ("sdot", "udot", "usdot", "sudot", "smmla", "ummla", "usmmla", "bfdot", "bfmmla", "bfmlal", "smlal",
                     "umlal", "smull", "umull", "sadalp", "uadalp")),
    ("convert", ("scvtf", "ucvtf", "fcvt", "sxtl", "uxtl", "sshll", "ushll", "bfcvt", "shll", "xtn", "sqxtn", "uqxtn")),
    ("shuffle", ("zip", "uzp", "trn", "tbl", "tbx", "ext", "dup", "ins", "rev", "umov", "smov", "mov")),
    ("divide", ("fdiv", "fsqrt", "frecp", "frsqrt")),
    ("vector move", ("ld", "st")),
)
_FLOW_GROUPS = {"jump": "branch", "call": "branch", "branch": "branch", "return": "branch", "trap": "branch",
                "nop": "nop", "barrier": "scalar"}
_ENDS = ("jump", "return", "trap")


@dataclass(frozen=True)
class Decoded:
    """One instruction. ``flow``: its name in ``_ALLOWED``, "gate" for the words of a barrier's gate, else "".
    ``target``: where a direct branch goes; -1 for others. ``group``: class of the instruction mix."""

    address: int
    text: str
    flow: str
    target: int
    group: str
    spill: bool


def sweep(segments: tuple[Segment, ...], entries: tuple[int, ...]) -> CodeFacts:
    """Decodes every executable word. Raises Refused with the address and the instruction."""
    starts: set[int] = set()
    targets: dict[int, int] = {}
    mix: Counter[str] = Counter()
    size = spills = 0
    for segment in segments:
        if not segment.executable:
            continue
        size += len(segment.data)
        gates = gates_in(segment, BARRIER_GATE)
        last = ""
        for found in decode(segment):
            if gates.get(found.address) != "inside":  # these can be reached through the gate's start only
                starts.add(found.address)
            if found.target >= 0:
                targets.setdefault(found.target, found.address)
            mix[found.group] += 1
            spills += found.spill
            if found.group != "nop":
                last = found.flow
        if last not in (*_ENDS, "gate"):
            raise Refused("the code runs on past its end")
    require_landing(starts, targets, entries)
    return CodeFacts(size, spills, tuple(mix.most_common()))


def decode(segment: Segment) -> Iterator[Decoded]:
    """The instructions of an executable segment, in order. Raises Refused for one that is not pure computation."""
    from capstone import CS_ARCH_ARM64, CS_MODE_ARM, Cs

    if segment.address % 4 or len(segment.data) % 4:
        raise Refused("the code is not made of whole instructions")
    words = struct.unpack(f"<{len(segment.data) // 4}I", segment.data)
    gates = gates_in(segment, BARRIER_GATE)
    engine = Cs(CS_ARCH_ARM64, CS_MODE_ARM)
    texts: dict[int, tuple[str, str]] = {}  # of words other than branches: the same wherever they stand
    for n, word in enumerate(words):
        address = segment.address + 4 * n
        flow = _flow(word)
        if address in gates:
            flow = "gate"
        if not flow and word not in texts:
            found = next(engine.disasm_lite(struct.pack("<I", word), address), None)
            if found is None:
                raise Refused(f"bytes at {address:#x} are no instruction: code holds no data")
            texts[word] = (found[2], found[3])
        if flow:
            shown = next(engine.disasm_lite(struct.pack("<I", word), address), None)
            name, operands = (shown[2], shown[3]) if shown else (flow, "")
        else:
            name, operands = texts[word]
        if why := _refusal(word, flow, name):
            hint = "; to meet the team call kf_barrier(launch)" if why in _INDIRECT else ""
            raise Refused(f"{why} at {address:#x}, '{name} {operands}', is not pure computation{hint}")
        vector = bool(_VECTOR.match(operands))
        group = _group(name, vector)
        yield Decoded(address, f"{name} {operands}".strip(), flow, _target(word, address, flow),
                      "branch" if flow == "gate" else _FLOW_GROUPS.get(flow, group),
                      group == "vector move" and _STACK.search(operands) is not None)


def _system(word: int) -> bool:
    """Whether a word is of the class of branches, exceptions and system instructions: bits 28 to 26 are 101."""
    return word >> 26 & 7 == 5


def _flow(word: int) -> str:
    if word >> 16 == 0:
        return "trap"  # udf
    if not _system(word):
        return ""
    return next((name for name, mask, value in _ALLOWED if word & mask == value), "")


def _refusal(word: int, flow: str, name: str) -> str:
    """Why an instruction may not be in a kernel; "" when it may."""
    if flow:
        return ""
    if _system(word):
        fitting = (what for what, mask, value in _REFUSED if word & mask == value)
        return next(fitting, "an instruction of an unknown extension")
    kind = word >> 25 & 15
    if kind in (0, 1, 3):
        return "an instruction of an unknown extension"
    if kind == 2:
        return "an instruction of SVE, which kernels may not use"
    if name in _FORBIDDEN or name.startswith(_KEYED):
        return "an instruction of pointer authentication, memory tags or 64-byte accesses"
    return ""


def _target(word: int, address: int, flow: str) -> int:
    """Where a direct branch goes; -1 where it is none."""
    if flow in ("jump", "call"):
        return address + 4 * _signed(word, 26)
    if flow == "branch":
        wide = word & 0x7E000000 != 0x36000000
        return address + 4 * (_signed(word >> 5, 19) if wide else _signed(word >> 5, 14))
    return -1


def _signed(word: int, bits: int) -> int:
    value = word & ((1 << bits) - 1)
    return value - (1 << bits) if value >> (bits - 1) else value


def _group(name: str, vector: bool) -> str:
    if name.startswith("prfm"):
        return "prefetch"
    if not vector:
        return "scalar"
    return next((group for group, stems in _GROUPS if name.startswith(stems)), "vector arithmetic")
