"""A built kernel's instructions in words, and its loops: what a person reads to see why it is slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from iced_x86 import Decoder, FlowControl, Formatter, FormatterSyntax

from kforge.backends.cpp import elf
from kforge.backends.cpp.code import group
from kforge.backends.cpp.code_aarch64 import decode

_WORK = ("fma", "dot product", "vector arithmetic", "divide")
_BRANCHES = (FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH)


@dataclass(frozen=True)
class Line:
    """``group``: class of the instruction mix."""

    address: int
    text: str
    group: str


@dataclass(frozen=True)
class Loop:
    """Instructions from ``first`` to ``last`` (indices of lines, the branch back included). ``depth`` counts from 1,
    ``innermost``: no loop lies inside."""

    first: int
    last: int
    depth: int
    innermost: bool
    mix: tuple[tuple[str, int], ...]  # class, count; the largest first

    @property
    def work(self) -> int:
        """Instructions that compute on vectors."""
        return sum(count for name, count in self.mix if name in _WORK)


@dataclass(frozen=True)
class Listing:
    """All of a kernel's code. ``loops`` in the order of their code."""

    lines: tuple[Line, ...]
    loops: tuple[Loop, ...]

    @property
    def hot(self) -> Loop | None:
        """The innermost loop that computes most on vectors, of equals the deepest; how often each runs is not in the
        code. None for code without loops."""
        inner = [loop for loop in self.loops if loop.innermost]
        return max(inner, key=lambda loop: (loop.work, loop.depth, loop.last - loop.first), default=None)


def disassemble(data: bytes) -> Listing:
    """Of an artifact that was admitted. Raises elf.Refused for bytes that are none."""
    formatter = Formatter(FormatterSyntax.INTEL)
    lines: list[Line] = []
    backwards: dict[int, int] = {}  # where a loop begins -> the last branch back to it
    layout = elf.read(data)
    for segment in layout.segments:
        if not segment.executable:
            continue
        if layout.machine == "aarch64":
            for found in decode(segment):
                lines.append(Line(found.address, found.text, found.group))
                if found.flow in ("jump", "branch") and 0 <= found.target <= found.address:
                    backwards[found.target] = found.address
            continue
        for instruction in Decoder(64, segment.data, ip=segment.address):
            address = instruction.ip
            lines.append(Line(address, formatter.format(instruction), group(instruction)))
            if instruction.flow_control in _BRANCHES and (target := instruction.near_branch_target) <= address:
                backwards[target] = address
    return Listing(tuple(lines), _loops(lines, backwards))


def _loops(lines: Sequence[Line], backwards: dict[int, int]) -> tuple[Loop, ...]:
    index = {line.address: n for n, line in enumerate(lines)}
    spans = sorted((index[begin], index[end]) for begin, end in backwards.items() if begin in index)
    loops = []
    for first, last in spans:
        around = [s for s in spans if s != (first, last) and s[0] <= first and last <= s[1]]
        inside = any(s != (first, last) and first <= s[0] and s[1] <= last for s in spans)
        mix = Counter(line.group for line in lines[first : last + 1])
        loops.append(Loop(first, last, 1 + len(around), not inside, tuple(mix.most_common())))
    return tuple(loops)
