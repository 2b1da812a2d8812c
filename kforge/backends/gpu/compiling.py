"""What compiling a device language in the sandbox takes, whichever compiler it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kforge.core.trial import Failure, FailureClass
from kforge.harness.sandbox import Outcome

MOST_TEXT = 32 << 20  # bytes of a disassembly
_ERROR = re.compile(r"^(?P<file>[^\s:(]+)[:(](?P<line>\d+)(?::\d+)?\)?: (?:fatal |catastrophic )?error:? ?"
                    r"(?P<text>.*)$", re.MULTILINE)
_CLOCKS = re.compile(r"\b(clock(64)?\s*\(|%?(clock|globaltimer)\w*|(s_|__builtin_amdgcn_s_)mem(real)?time\w*)")
_AROUND = 4  # lines of source shown on each side of an error


@dataclass(frozen=True)
class BuildLimits:
    """Bounds of one compilation."""

    seconds: float = 120.0
    memory_bytes: int = 4 << 30
    output_bytes: int = 64 << 20


LIMITS = BuildLimits()


def failure(outcome: Outcome, name: str, source_name: str, source: str, limits: BuildLimits) -> Failure | None:
    """Why the compiler ``name`` left nothing to use; None when it ended well."""
    if outcome.timed_out:
        return Failure(FailureClass.COMPILE_LIMIT, f"{name} took longer than {limits.seconds:g} s",
                       outcome.text[-2000:])
    if outcome.code == 0:
        return None
    first = _ERROR.search(outcome.text)
    if outcome.code < 0 and first is None:
        return Failure(FailureClass.COMPILE_LIMIT, f"{name} ended with signal {-outcome.code}: its limits are "
                       f"{limits.seconds:g} s and {limits.memory_bytes >> 20} MiB", outcome.text[-2000:])
    if first is None:
        return Failure(FailureClass.COMPILE, f"{name} failed: {outcome.text.strip()[-300:]}", outcome.text[-4000:])
    lines, at = source.splitlines(), int(first["line"])
    around = range(max(1, at - _AROUND), min(len(lines), at + _AROUND) + 1) if first["file"] == source_name else ()
    shown = "\n".join(f"{'>' if n == at else ' '}{n:5} {lines[n - 1]}" for n in around)
    return Failure(FailureClass.COMPILE, f"{name}: {first['file']}:{at}: {first['text']}",
                   f"{shown}\n{outcome.text[:4000]}".strip())


def warned(source: str) -> str:
    """What a reader of the source should look at; "" when there is nothing. It only warns."""
    found = _CLOCKS.search(source)
    return f"kforge: the source reads a clock ({found[0].strip()}), which no operator needs\n" if found else ""
