"""A model's shapes as workloads: every operator call of a decode step and of a prefill chunk, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.errors import KforgeError
from kforge.core.workload import Phase, Workload
from kforge.models.graph import Call, CallKind, ModelShape, StepOptions, step_calls

if TYPE_CHECKING:
    from kforge.core.target import Target
    from kforge.operators.base import Cost
    from kforge.targets.roofline import Limit

_DEFAULT = StepOptions()


@dataclass(frozen=True)
class Mode:
    """One way of using a model: ``sequences`` that each bring ``queries`` new tokens and then stand at ``context``."""

    phase: Phase
    sequences: int
    queries: int
    context: int

    @property
    def name(self) -> str:
        if self.phase is Phase.PREFILL:
            return f"prefill {self.queries}"
        return f"decode batch {self.sequences} context {self.context}"

    @property
    def tokens(self) -> int:
        return self.sequences * self.queries


@dataclass(frozen=True)
class WorkloadRow:
    """Equal calls of one mode's step. ``workload.count`` is how many they are; ``kind`` is that of the first."""

    mode: Mode
    kind: CallKind
    workload: Workload


@dataclass(frozen=True)
class PricedRow:
    """A row with what one of its calls must move and do, and the least time that the target allows it."""

    row: WorkloadRow
    cost: Cost  # of one call
    limit: Limit  # of one call
    seconds: float  # at the limit, all calls together
    share: float  # of its mode's step


def modes(batch: Sequence[int] = (1, 8), context: Sequence[int] = (512,), prefill: int = 512) -> list[Mode]:
    """Decode at every batch and context, and one prefill chunk of a fresh sequence (none when ``prefill`` is 0)."""
    if any(n < 1 for n in (*batch, *context)) or prefill < 0:
        raise KforgeError("Batch sizes and context lengths must be at least 1, a prefill chunk at least 0.")
    decode = [Mode(Phase.DECODE, b, 1, c) for b in batch for c in context]
    return decode + ([Mode(Phase.PREFILL, 1, prefill, prefill)] if prefill else [])


def workloads(model: ModelShape, batch: Sequence[int] = (1, 8), context: Sequence[int] = (512,), prefill: int = 512,
              options: StepOptions = _DEFAULT) -> list[WorkloadRow]:
    """Every distinct call of each mode, in the order of the step, exactly as the engine makes it.

    Raises ``KforgeError`` for a context beyond the model's.
    """
    longest = max([*context, prefill])
    if longest > model.config.context_length:
        raise KforgeError(f"{model.config.name} holds at most {model.config.context_length} positions, not {longest}.")
    calls = step_calls(model, options)
    return [row for mode in modes(batch, context, prefill) for row in _rows(calls, mode, options)]


def _rows(calls: Sequence[Call], mode: Mode, options: StepOptions) -> list[WorkloadRow]:
    counts: dict[Workload, int] = {}
    kinds: dict[Workload, CallKind] = {}
    for call in calls:
        workload = Workload(call.problem, tuple(sorted(_dynamic(call, mode, options).items())))
        counts[workload] = counts.get(workload, 0) + 1
        kinds.setdefault(workload, call.kind)
    return [WorkloadRow(mode, kinds[workload], Workload(workload.problem, workload.dynamic, float(count), mode.phase))
            for workload, count in counts.items()]


def _dynamic(call: Call, mode: Mode, options: StepOptions) -> dict[str, int]:
    """The dynamic axes of a call, by its operator's names (docs/architecture.md). One row of logits per sequence."""
    rows = mode.sequences if call.kind.per_sequence else mode.tokens
    table_width = -(-mode.context // options.page)
    match call.problem.operator:
        case "linear":
            return {"M": rows}
        case "gather_rows":
            return {"R": mode.sequences, "T": mode.tokens}
        case "argmax":
            return {"R": rows}
        case "rope_kv_write" | "qk_norm_rope_kv_write":
            pages = mode.sequences * table_width
            return {"T": rows, "pages": pages, "positions": table_width * options.page}
        case "paged_attention":
            return {"T": rows, "S": mode.sequences, "B": table_width, "pages": mode.sequences * table_width,
                    "max_context": mode.context}
    return {"T": rows}


def priced(rows: Sequence[WorkloadRow], target: Target, threads: int | None = None) -> list[PricedRow]:
    """Each row with its operator's cost, the time that the target's limits allow, and its share of its mode's step."""
    from kforge.operators import get
    from kforge.targets.roofline import time_limit

    costs = [get(row.workload.problem.operator).cost(row.workload) for row in rows]
    limits = [time_limit(cost, target, threads) for cost in costs]
    seconds = [row.workload.count * limit.seconds for row, limit in zip(rows, limits, strict=True)]
    total: dict[Mode, float] = {}
    for row, s in zip(rows, seconds, strict=True):
        total[row.mode] = total.get(row.mode, 0.0) + s
    return [PricedRow(row, cost, limit, s, s / total[row.mode] if total[row.mode] else 0.0)
            for row, cost, limit, s in zip(rows, costs, limits, seconds, strict=True)]
