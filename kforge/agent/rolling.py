"""A loop's machine code as a person would write it: what an unroller repeated stands once, with how often."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_PERIOD = 32  # instructions that are looked for again behind themselves
_MEMORY = re.compile(r"\[[^\]]*\]")
_VECTOR = re.compile(r"\b([xyz]mm)\d+")
_NUMBER = re.compile(r"\b\d[0-9A-Fa-f]*h?\b")
_OTHER = re.compile(r"\b(?:r\d+[dwb]?|k[0-7]|[re]?[abcd]x|[re]?[sd]i|[re]?[sb]p|[abcd][lh]|[sd]il)\b")


@dataclass(frozen=True)
class _Run:
    """``times`` repetitions of the next ``period`` instructions."""

    period: int
    times: int

    @property
    def saved(self) -> int:
        return self.period * (self.times - 1) - (self.period > 1)


def rolled(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """``lines``: instructions. At most ``most`` lines and one that counts the rest. Repeated are those that differ in
    nothing but registers, addresses and constants; the first of them stands for all."""
    forms = [_form(line) for line in lines]
    text: list[str] = []
    at = 0
    while at < len(lines):
        run = _longest(forms, at)
        if run.saved <= 0:
            run = _Run(1, 1)
        block = lines[at : at + run.period]
        if run.times == 1:
            text.append(block[0])
        elif run.period == 1:
            text.append(f"{run.times} x  {block[0]}")
        else:
            text += [f"{run.times} x  {run.period} instructions:", *(f"    {line}" for line in block)]
        at += run.period * run.times
    left = len(text) - most
    return (*text[:most], f"({left} more lines)") if left > 0 else tuple(text)


def _longest(forms: Sequence[str], at: int) -> _Run:
    """The run that saves most; of equals the one of the shortest period."""
    periods = range(1, min(_MOST_PERIOD, (len(forms) - at) // 2) + 1)
    return max((_Run(period, _times(forms, at, period)) for period in periods), key=lambda run: run.saved,
               default=_Run(1, 1))


def _times(forms: Sequence[str], at: int, period: int) -> int:
    end = at + period
    while end < len(forms) and forms[end] == forms[end - period]:
        end += 1
    return (end - at) // period


def _form(line: str) -> str:
    """What is left without the names of registers, addresses and constants."""
    return _OTHER.sub("r", _NUMBER.sub("n", _VECTOR.sub(r"\1", _MEMORY.sub("[]", line))))
