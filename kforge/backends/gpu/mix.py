"""What the main loop of a GPU kernel consists of, from its disassembly (SASS) or its compiler's assembly (amdgcn).

The main loop is the innermost loop that moves and computes most; a kernel without loops is its own. Classes of
instructions by the beginning of their names: NVIDIA's "CUDA Binary Utilities", "Instruction Set Reference"; LLVM's
"Syntax of Instructions" for each AMD generation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

# The first that fits decides. "bytes" of a load are those of one thread.
_NVIDIA = (
    ("mma_bf16", r"H(G)?MMA.*BF16"), ("mma_tf32", r"H(G)?MMA.*TF32"), ("mma_fp16", r"H(G)?MMA|UTCHMMA"),
    ("mma_fp8", r"QMMA|QGMMA|UTCQMMA|OMMA|UTCOMMA"), ("mma_int8", r"IMMA|IGMMA|UTCIMMA"), ("mma_fp64", r"DMMA"),
    ("copy_async", r"LDGSTS|UBLKCP|UTMALDG|UTMASTG|UTMAREDG"), ("load_global", r"LDG|LD\.E|LD$"),
    ("store_global", r"STG|ST\.E|ST$|RED|ATOM(?!S)"), ("load_shared", r"LDS|ATOMS"), ("store_shared", r"STS|STAS"),
    ("spill", r"LDL|STL"), ("constant", r"LDC|ULDC|LDCU"), ("special", r"MUFU"),
    ("convert", r"I2F|F2I|F2F|I2I|F2FP|I2FP|FRND|F2IP"), ("half", r"HADD2|HMUL2|HFMA2|HSET|HMNMX"),
    ("float", r"FADD|FMUL|FFMA|FSEL|FSET|FMNMX|FCHK|FSWZADD|DADD|DMUL|DFMA"),
    ("wait", r"BAR|DEPBAR|LDGDEPBAR|SYNCS|WARPSYNC|WARPGROUP|MEMBAR|ERRBAR|CCTL|UCGABAR|FENCE|ARRIVES|NANOSLEEP"),
    ("shuffle", r"SHFL|REDUX|VOTE|MATCH|MOVM"),
    ("control", r"BRA|BRX|BSSY|BSYNC|EXIT|CALL|RET|JMP|NOP|YIELD|BREAK|WARPSYNC|BMOV|ELECT|KILL|ACQBULK|PREEXIT"),
    ("uniform", r"U[A-Z]|R2UR|S2UR|VOTEU"), ("integer", r"[A-Z]"),
)
_AMD = (
    ("mma_bf16", r"v_s?(mfma|wmma)\w*bf16"), ("mma_fp8", r"v_s?(mfma|wmma)\w*(fp8|bf8|f8f6f4)"),
    ("mma_fp16", r"v_s?(mfma|wmma)\w*f16"), ("mma_int8", r"v_s?(mfma|wmma)\w*(i8|iu8|iu4)"),
    ("mma_tf32", r"v_s?mfma\w*xf32"), ("mma_fp32", r"v_s?(mfma|wmma)"), ("dot", r"v_dot"),
    ("copy_async", r"(global|buffer)_load_lds|(global|buffer)_load_\w+_lds"),
    ("load_global", r"(global|buffer|flat)_load"), ("store_global", r"(global|buffer|flat)_(store|atomic)"),
    ("load_shared", r"ds_(read|load|bpermute|permute|swizzle)"), ("store_shared", r"ds_"), ("spill", r"scratch_"),
    ("constant", r"s_(buffer_)?load"), ("special", r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_"),
    ("convert", r"v_cvt|v_fract|v_rndne|v_floor|v_ceil|v_trunc"), ("half", r"v_\w+_(f16|bf16)"),
    ("float", r"v_(dual_)?\w+_f(32|64)"), ("wait", r"s_(waitcnt|wait_|barrier|delay_alu|nop|sleep|setprio)|sched_"),
    ("shuffle", r"v_(readlane|writelane|readfirstlane|permlane)|\w+_dpp"),
    ("control", r"s_(c?branch|endpgm|setpc|swappc|getpc|clause|code_end)"), ("uniform", r"s_"), ("integer", r"v_"),
)
_REFUSED_NVIDIA = re.compile(r"BPT|BRXU?\b|JMXU?\b|JMP\b|CALL\.ABS|RTT|GETLMEMBASE|SETLMEMBASE")
_REFUSED_AMD = re.compile(r"s_trap|s_swappc|s_setpc|s_sendmsg|s_getreg|s_rfe|s_ttrace|s_cbranch_g_fork|s_call")
_SASS = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_.]*)\s*(?P<rest>[^;]*);")
_GCN = re.compile(r"\s+(?P<opcode>[a-z][a-z0-9_]*)(?P<rest>[^;]*)")
_LABEL = re.compile(r"(?P<label>\.L\w+):")
_TARGET = re.compile(r"\.L\w+")
_DUAL = " :: "  # two operations in one instruction of RDNA 3


@dataclass(frozen=True)
class Mix:
    """Of one pass of the main loop, or of the whole kernel where ``loop`` is false.

    ``classes``: instructions by class, most first; ``load_bytes``: that a thread's global loads bring; ``refused``: the
    first instruction anywhere that a kernel has no use for (traps, jumps to computed addresses, messages), "".
    """

    classes: tuple[tuple[str, int], ...]
    instructions: int
    load_bytes: int
    loop: bool
    refused: str


@dataclass(frozen=True)
class _Instruction:
    opcode: str
    rest: str


def of_sass(text: str) -> Mix:
    """From ``nvdisasm -c``."""
    return _mix(list(_lines(text, _SASS)), _NVIDIA, _REFUSED_NVIDIA, "BRA")


def of_gcn(text: str) -> Mix:
    """From the compiler's assembly."""
    body = text.partition("\t.section\t.AMDGPU")[0].partition(".Lfunc_end0:")[0]
    return _mix(list(_lines(body, _GCN)), _AMD, _REFUSED_AMD, "s_cbranch|s_branch")


def _lines(text: str, instruction: re.Pattern[str]) -> Iterator[_Instruction | str]:
    """Instructions, and labels as text, in order."""
    for line in text.splitlines():
        if label := _LABEL.match(line):
            yield label["label"]
        elif found := instruction.match(line):
            yield _Instruction(found["opcode"], found["rest"])


def _mix(lines: list[_Instruction | str], table: tuple[tuple[str, str], ...], never: re.Pattern[str],
         branch: str) -> Mix:
    known = [(name, re.compile(pattern)) for name, pattern in table]
    refused = next((line.opcode for line in lines if isinstance(line, _Instruction) and never.match(line.opcode)
                    and "DEALLOC_VGPRS" not in line.rest), "")
    body, loop = _main_loop(lines, known, re.compile(branch))
    count: Counter[str] = Counter()
    load = 0
    for line in body:
        name = _class(line, known)
        count[name] += 1 + line.rest.count(_DUAL)
        load += _load_bytes(line.opcode) if name in ("load_global", "copy_async") else 0
    return Mix(tuple(count.most_common()), sum(count.values()), load, loop, refused)


def _main_loop(lines: list[_Instruction | str], known: list[tuple[str, re.Pattern[str]]],
               branch: re.Pattern[str]) -> tuple[list[_Instruction], bool]:
    places = {line: i for i, line in enumerate(lines) if isinstance(line, str)}
    loops = []
    for i, line in enumerate(lines):
        if isinstance(line, _Instruction) and branch.match(line.opcode):
            target = _TARGET.search(line.rest)
            start = places.get(target.group(), i) if target else i
            if start < i - 1:  # not the branch to itself behind a kernel's end
                loops.append((start, i))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    bodies = [[line for line in lines[a:b + 1] if isinstance(line, _Instruction)] for a, b in inner]
    whole = [line for line in lines if isinstance(line, _Instruction)]
    best = max(bodies, key=lambda body: _work(body, known), default=[])
    return (best, True) if _work(best, known) > 0 else (whole, False)


def _work(body: list[_Instruction], known: list[tuple[str, re.Pattern[str]]]) -> int:
    """What a loop loads and computes: memory and matrix instructions weigh most. 0: it only counts, waits or stores (a
    masked store may be laid out as a jump backwards)."""
    names = [_class(line, known) for line in body]
    heavy = sum(name.startswith(("mma", "load_global", "copy_async")) for name in names)
    return 16 * heavy + len(names) if heavy else 0


def _class(line: _Instruction, known: list[tuple[str, re.Pattern[str]]]) -> str:
    return next((name for name, pattern in known if pattern.match(line.opcode)), "other")


def _load_bytes(opcode: str) -> int:
    """Bytes that a thread's load brings, from its suffix."""
    for pattern, size in ((r"128|x4\b|_b128|x4$", 16), (r"x3$|b96", 12), (r"\.64|b64|x2$", 8),
                          (r"\.[US]8|byte|_[ui]8", 1), (r"\.[US]16|short|_[ui]16|_b16", 2)):
        if re.search(pattern, opcode):
            return size
    return 4
