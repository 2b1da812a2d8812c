"""The code half of admission for x86-64: every executable byte is decoded once, and every instruction only computes.

The sweep is linear from the start of each executable segment. Since direct branches and the entry points must land on
instruction boundaries of the sweep, and indirect ones are refused, what runs is what was decoded (up to return
addresses that a kernel bends itself; the runner's system call filter is there for those).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from iced_x86 import (
    Code,
    CpuidFeature,
    Decoder,
    FlowControl,
    Formatter,
    FormatterSyntax,
    Instruction,
    Mnemonic,
    Register,
)

from kforge.backends.cpp.elf import Refused
from kforge.backends.cpp.facts import CodeFacts, gates_in, require_landing
from kforge.core.image import Segment

# mov rax, [rdi+64]; mov rdi, [rdi+56]; jmp rax: kf_barrier_gate of kforge/freestanding.h, to the byte.
BARRIER_GATE = bytes.fromhex("488b4740 488b7f38 ffe0")

_names = {value: name for name, value in vars(CpuidFeature).items() if isinstance(value, int)}
_mnemonics = {value: name.lower() for name, value in vars(Mnemonic).items() if isinstance(value, int)}

# Extensions that only compute. Absent on purpose: x87, MMX and AMX (their state would outlive the call), RDTSC, PKU,
# FSGSBASE, RDRAND, TSX, XSAVE, SGX, user interrupts, monitor/mwait, line flushes, and whatever is invented next.
_COMPUTE = frozenset({
    "INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "CMOV", "MULTIBYTENOP", "CX8", "CMPXCHG16B",
    "SSE", "SSE2", "SSE3", "SSSE3", "SSE4_1", "SSE4_2", "POPCNT", "LZCNT", "BMI1", "BMI2", "ADX", "MOVBE",
    "PAUSE", "AVX", "AVX2", "F16C", "FMA", "GFNI", "VAES", "AES", "PCLMULQDQ", "VPCLMULQDQ", "PREFETCHW",
    "AVX_VNNI", "AVX_VNNI_INT8", "AVX_VNNI_INT16", "AVX_NE_CONVERT", "AVX_IFMA",
    "AVX512F", "AVX512CD", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512_IFMA", "AVX512_VBMI", "AVX512_VBMI2",
    "AVX512_VNNI", "AVX512_BITALG", "AVX512_VPOPCNTDQ", "AVX512_BF16", "AVX512_FP16", "AVX512_VP2INTERSECT",
    "CET_IBT",
})
# Of these extensions: flags, control registers and segments that outlive the call, far transfers, the MMX half of SSE.
_FORBIDDEN = frozenset({
    "ldmxcsr", "vldmxcsr", "popf", "popfd", "popfq", "std", "hlt", "in", "insb", "insw", "insd", "out", "outsb",
    "outsw", "outsd", "retf", "iret", "iretd", "iretq", "lss", "lfs", "lgs", "sldt", "str", "sgdt", "sidt", "smsw",
    "lar", "lsl", "verr", "verw", "cvtpi2ps", "cvtps2pi", "cvttps2pi", "cvtpi2pd", "cvtpd2pi", "cvttpd2pi", "movdq2q",
    "movq2dq",
    "maskmovq", "movntq",
})
_VECTOR = frozenset(name for name in _COMPUTE if name.startswith(("SSE", "SSSE", "AVX", "FMA", "F16C", "GFNI")))
_FLOW = {
    FlowControl.INDIRECT_BRANCH: "an indirect jump",
    FlowControl.INDIRECT_CALL: "an indirect call",
    FlowControl.INTERRUPT: "a software interrupt",
    FlowControl.XBEGIN_XABORT_XEND: "a transaction",
}
_ENDS = (FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH, FlowControl.EXCEPTION)
_NEAR = (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH, FlowControl.CALL)
_SEGMENT_LOADS = frozenset(value for name, value in vars(Code).items()
                           if name.startswith(("MOV_SREG_", "POPQ_", "POPW_")))
_PREFIXES = frozenset(bytes.fromhex("262e363e64656667f0f2f3") + bytes(range(0x40, 0x50)))  # legacy ones and REX
_MMX = frozenset(range(Register.MM0, Register.MM7 + 1))
_FORMATTER = Formatter(FormatterSyntax.INTEL)

# Classes of the instruction mix, by what a mnemonic begins with (a leading v is dropped first); the first match counts.
_GROUPS = (
    ("fma", ("fmadd", "fmsub", "fnmadd", "fnmsub")),
    ("dot product", ("pdpb", "pdpw", "dpbf16", "pmaddubsw", "pmaddwd")),
    ("convert", ("cvt", "pmovsx", "pmovzx", "cvtph", "cvtps")),
    ("shuffle", ("perm", "shuf", "pshuf", "unpck", "punpck", "broadcast", "pbroadcast", "extract", "insert", "palignr",
                 "blend", "pblend", "pack", "compress", "expand", "gather", "pgather")),
    ("divide", ("div", "sqrt", "rcp", "rsqrt")),
    ("vector move", ("movap", "movup", "movdq", "movss", "movsd", "movq", "movd", "movnt", "lddqu")),
    ("branch", ("j", "call", "ret")),
    ("prefetch", ("prefetch",)),
    ("nop", ("nop", "endbr", "int3")),
)


@dataclass(frozen=True)
class _Kind:
    """What holds of every instruction of one encoding."""

    refusal: str
    near_branch: bool
    leaves: bool  # control may go elsewhere than to the next instruction
    ends: bool  # control never runs on into the next bytes
    group: str
    vector_move: bool


def sweep(segments: tuple[Segment, ...], entries: tuple[int, ...]) -> CodeFacts:
    """Decodes every executable byte. Raises Refused with the address and the instruction."""
    starts: set[int] = set()
    targets: dict[int, int] = {}  # target -> the first branch that goes there
    mix: Counter[str] = Counter()
    size = spills = 0
    for segment in segments:
        if segment.executable:
            size += len(segment.data)
            spills += _sweep_segment(segment, starts, targets, mix)
    require_landing(starts, targets, entries)
    return CodeFacts(size, spills, tuple(mix.most_common()))


def _sweep_segment(segment: Segment, starts: set[int], targets: dict[int, int], mix: Counter[str]) -> int:
    """Vector spills of one segment; adds to ``starts``, ``targets`` and ``mix``. Raises Refused."""
    decoder = Decoder(64, segment.data, ip=segment.address)
    gates = gates_in(segment, BARRIER_GATE)
    spills = 0
    framed = False  # rbp holds a frame: mov rbp, rsp was the last to set it
    last = None
    for instruction in decoder:
        address = instruction.ip
        if instruction.is_invalid:
            raise Refused(f"bytes at {address:#x} are no instruction: code holds no data")
        kind = _kind(instruction)
        gate = gates.get(address)
        if gate != "inside":  # the two instructions after a gate's start can be reached through it only
            starts.add(address)
        if (kind.refusal and not gate) or instruction.segment_prefix in (Register.FS, Register.GS):
            what = kind.refusal or "a thread-local access"
            raise Refused(f"{what} at {address:#x}, '{_FORMATTER.format(instruction)}', is not pure computation"
                          f"{_hint(instruction)}")
        if kind.leaves and _has_operand_size_prefix(segment.data, address - segment.address):
            # Processors disagree on its length: AMD's take a 16-bit offset, Intel's ignore the prefix.
            raise Refused(f"a branch with an operand-size prefix at {address:#x}")
        if kind.near_branch:
            targets.setdefault(instruction.near_branch_target, address)
        mix[kind.group] += 1
        if instruction.code in (Code.MOV_R64_RM64, Code.MOV_RM64_R64) and instruction.op0_register == Register.RBP:
            framed = instruction.op1_register == Register.RSP
        if kind.vector_move and (instruction.memory_base == Register.RSP or
                                 (framed and instruction.memory_base == Register.RBP)):
            spills += 1
        if kind.group != "nop":
            last = kind
    if last is None or not last.ends:
        raise Refused("the code runs on past its end")
    return spills


def _has_operand_size_prefix(data: bytes, at: int) -> bool:
    while data[at] in _PREFIXES:
        if data[at] == 0x66:
            return True
        at += 1
    return False


_kinds: dict[int, _Kind] = {}


def _kind(instruction: Instruction) -> _Kind:
    """What holds for the instruction's encoding, remembered: a kernel uses few hundred of them."""
    found = _kinds.get(instruction.code)
    if found is None:
        found = _kinds[instruction.code] = _classify(instruction)
    return found


def _classify(instruction: Instruction) -> _Kind:
    flow = instruction.flow_control
    mnemonic = _mnemonics[instruction.mnemonic]
    features = {_names[feature] for feature in instruction.cpuid_features()}
    vector = bool(features & _VECTOR)
    refusal = _FLOW.get(flow, "")
    if not refusal and instruction.is_privileged:
        refusal = "a privileged instruction"
    elif not refusal and (mnemonic in _FORBIDDEN or instruction.code in _SEGMENT_LOADS):
        refusal = "a change of machine state"
    elif not refusal and not features <= _COMPUTE:
        refusal = f"an instruction of {', '.join(sorted(features - _COMPUTE))}"
    elif not refusal and any(instruction.op_register(i) in _MMX for i in range(min(instruction.op_count, 4))):
        refusal = "an MMX register"
    elif not refusal and flow in _NEAR and not _is_near(instruction):
        refusal = "a far jump or call"
    group = _group(mnemonic, vector)
    return _Kind(refusal, flow in _NEAR, flow != FlowControl.NEXT, flow in _ENDS, group,
                 vector and group == "vector move")


def _is_near(instruction: Instruction) -> bool:
    return not (instruction.is_call_far or instruction.is_jmp_far)


def group(instruction: Instruction) -> str:
    """Class of the instruction mix that an instruction counts in."""
    return _kind(instruction).group


def _group(mnemonic: str, vector: bool) -> str:
    stem = mnemonic[1:] if vector and mnemonic.startswith("v") else mnemonic
    for name, stems in _GROUPS:
        if stem.startswith(stems) and (vector or name in ("branch", "prefetch", "nop")):
            return name
    return "vector arithmetic" if vector else "scalar"


def _hint(instruction: Instruction) -> str:
    indirect = instruction.flow_control in (FlowControl.INDIRECT_CALL, FlowControl.INDIRECT_BRANCH)
    return "; to meet the team call kf_barrier(launch)" if indirect else ""
