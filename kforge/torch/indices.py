"""Index tensors, before a kernel follows them: a kernel trusts its caller, and one wrong index reads foreign memory.

Exported packages carry this file as it is: it imports nothing of kforge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


class Problem(Protocol):
    """An operator with its static attributes, as ``kforge.core.workload`` has it."""

    @property
    def operator(self) -> str: ...

    def int(self, name: str) -> int: ...


def check(problem: Problem, arrays: Mapping[str, np.ndarray], axes: Mapping[str, int]) -> None:
    """Raises ValueError that names the tensor and what in it is out of range."""
    match problem.operator:
        case "embedding":
            _inside("ids", arrays["ids"], 0, problem.int("V"))
        case "gather_rows":
            _inside("index", arrays["index"], 0, axes["T"])
        case "rope_kv_write" | "qk_norm_rope_kv_write":
            _inside("position", arrays["position"], 0, axes["positions"])
            _below("slot", arrays["slot"], axes["pages"] * problem.int("P"))
        case "moe_linear":
            slots = axes["T"] * problem.int("k")
            _inside("order", arrays["order"], 0, slots)
            _each_once("order", arrays["order"], slots)
            _ascending("expert_start", arrays["expert_start"], slots)
        case "paged_attention":
            _attention(problem, arrays, axes)


def _attention(problem: Problem, arrays: Mapping[str, np.ndarray], axes: Mapping[str, int]) -> None:
    import numpy as np

    page, window = problem.int("P"), problem.int("window")
    table, start, context = (arrays[name] for name in ("block_table", "query_start", "context"))
    _ascending("query_start", start, axes["T"])
    queries = np.diff(start)
    most = min(axes["B"] * page, axes["max_context"])
    if ((context < queries) | (context > most)).any():
        raise ValueError(f"context: a sequence's is at least its queries and at most {most}, from B, P and max_context")
    first = np.maximum(context - queries - window + 1, 0) if window else np.zeros_like(context)
    blocks = np.arange(axes["B"]) * page
    used = (queries > 0)[:, None] & (blocks < context[:, None]) & (blocks + page > first[:, None])
    _inside("block_table", table[used], 0, axes["pages"])


def _inside(name: str, values: np.ndarray, low: int, end: int) -> None:
    if values.size and (values.min() < low or values.max() >= end):
        raise ValueError(f"{name}: {int(values.min())} .. {int(values.max())} is not inside {low} .. {end - 1}")


def _each_once(name: str, values: np.ndarray, end: int) -> None:
    import numpy as np

    if (np.bincount(values, minlength=end) != 1).any():
        raise ValueError(f"{name}: it must have each of 0 .. {end - 1} once")


def _below(name: str, values: np.ndarray, end: int) -> None:
    """Negative ones mean that nothing is written."""
    if values.size and values.max() >= end:
        raise ValueError(f"{name}: {int(values.max())} is not below {end}")


def _ascending(name: str, values: np.ndarray, end: int) -> None:
    """From 0 to ``end``."""
    if values[0] != 0 or values[-1] != end or (values[1:] < values[:-1]).any():
        raise ValueError(f"{name}: it must ascend from 0 to {end}")
