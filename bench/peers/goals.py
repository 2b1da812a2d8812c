"""What kforge asks of itself beside its peers: a figure of a row that must be at least this many times the peer's."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.core.summary import Summary


@dataclass(frozen=True)
class Goal:
    """``group`` and ``row`` as in the tables. ``figure``: a key of ``trace.BETTER``, or "speed" of a row of steps."""

    group: str
    row: str
    figure: str
    at_least: float


GOALS = (
    Goal("serving", "mixed, saturated", "throughput", 2.0),
    Goal("serving", "mixed, saturated", "between tokens, p99", 1.0),
    Goal("vllm-w8a8", "mixed, saturated", "throughput", 0.95),
    Goal("moe", "batch 1", "speed", 1.2),
    Goal("moe", "batch 8", "speed", 1.5),
    Goal("moe", "batch 32", "speed", 2.0),
    Goal("moe", "prefill 512", "speed", 3.5),
    Goal("depth", "batch 1, depth 8192", "speed", 2.0),
)


def required(group: str, row: str, figure: str) -> float | None:
    """None where nothing is asked."""
    return next((g.at_least for g in GOALS if (g.group, g.row, g.figure) == (group, row, figure)), None)


def beside(group: str, row: str, figure: str, measured: Summary) -> str:
    """The measured ratio, and beside it what is asked and whether it is reached."""
    asked = required(group, row, figure)
    if asked is None:
        return str(measured)
    return f"{measured} ({'reaches' if measured.median >= asked else 'MISSES'} {asked:g})"
