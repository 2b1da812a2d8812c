"""Rows of continuous batching: requests served by the clock, by every engine in turn with the same ones."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from kforge.core.summary import Summary
from peers.goals import beside, required
from peers.process import Process
from peers.settings import Settled, spelled
from peers.steps import REST
from peers.trace import BETTER, Served, Trace, ratios

SATURATED, STEADY = "mixed, saturated", "mixed, steady"
# Of the time that the fastest engine needs for the whole trace: all engines fall behind, so throughput is theirs.
_SATURATED_SPAN = 0.3
# Of the throughput of the slowest engine when saturated: nobody falls behind for long, so waiting is not a backlog's.
_STEADY_LOAD = 0.6


@dataclass(frozen=True)
class ServingResult:
    """Figures of a row; ``ratios``, ``required`` by ``trace.BETTER``, empty where kforge did not run. ``span``: seconds
    from the first arrival to the last, the same for every side; 0 when all come at once."""

    group: str
    model: str
    row: str
    peer: str
    settings: dict[str, object]
    span: float
    ratios: dict[str, Summary]
    required: dict[str, float]
    figures: dict[str, dict[str, Summary]]  # by side, then by field of ``Served``


def serve(
    group: str,
    model: str,
    traces: Sequence[Trace],
    mixed: Trace,
    sides: Sequence[Settled],
    rounds: int,
    console: Console,
) -> list[ServingResult]:
    """Every trace in interleaved rounds: the full ones, then the mixed one, saturated and at a load that all can bear.

    ``sides``: the peer last; kforge before it, where it can run the model.
    """
    results = []

    def row(name: str, trace: Trace, span: float, count: int) -> dict[str, list[Served]]:
        served = _rounds(trace, span, [s.process for s in sides], count)
        results.append(_result(group, model, name, span, served, sides[-1]))
        console.print(_line(results[-1]))
        return served

    for trace in traces:
        row(trace.name, trace, 0.0, rounds)
    tokens = mixed.prompt_tokens + mixed.output_tokens
    saturated = row(SATURATED, mixed, _SATURATED_SPAN * tokens / max(s.speed for s in sides), rounds)
    slowest = max(Summary.of([r.seconds for r in runs]).median for runs in saturated.values())
    row(STEADY, mixed, slowest / _STEADY_LOAD, max(rounds - 1, 1))
    return results


def _rounds(trace: Trace, span: float, sides: list[Process], count: int) -> dict[str, list[Served]]:
    request, warm = trace.request(span), trace.shortened().request(0.0)
    served: dict[str, list[Served]] = {side.name: [] for side in sides}
    for side in sides:
        side.ask(warm)  # contexts, programs, pages
        time.sleep(REST)
    for n in range(count):
        for side in sides if n % 2 == 0 else sides[::-1]:
            served[side.name].append(Served.of(request, side.ask(request)["times"]))  # type: ignore[arg-type]
            time.sleep(REST)
    return served


def _result(
    group: str, model: str, row: str, span: float, served: dict[str, list[Served]], peer: Settled
) -> ServingResult:
    ours, theirs = served.get("kforge"), served[peer.process.name]
    figures = {
        name: {f.name: Summary.of([getattr(r, f.name) for r in runs]) for f in dataclasses.fields(Served)}
        for name, runs in served.items()
    }
    asked = {name: least for name in BETTER if (least := required(group, row, name)) is not None}
    compared = ratios(ours, theirs) if ours else {}
    return ServingResult(group, model, row, peer.process.name, peer.settings, span, compared, asked, figures)


def _line(r: ServingResult) -> str:
    if not r.ratios:
        return f"{r.model} {r.row}: {r.peer} {r.figures[r.peer]['throughput']} tok/s"
    told = ", ".join(f"{name} {beside(r.group, r.row, name, ratio)}" for name, ratio in r.ratios.items())
    return f"{r.model} {r.row}: kforge / {r.peer}: {told}"


def print_serving(results: Sequence[ServingResult], console: Console) -> None:
    table = Table(title="continuous batching: same requests, weights, threads, interleaved; above 1 kforge is better")
    for column in ("model", "row", "beside", "tok/s", "throughput", "first token", "gap", "gap p99", "p99, s"):
        table.add_column(column, justify="left" if column in ("model", "row", "beside") else "right")
    for r in results:
        sides = list(r.figures.values())
        table.add_row(
            r.model,
            r.row,
            r.peer,
            " / ".join(f"{s['throughput'].median:.3g}" for s in sides),
            *(
                beside(r.group, r.row, name, r.ratios[name]) if r.ratios else ""
                for name in ("throughput", "first token", "between tokens", "between tokens, p99")
            ),
            " / ".join(f"{s['gap_p99'].median:.3g}" for s in sides),
        )
    console.print(table)
    for peer, settings in {r.peer: r.settings for r in results}.items():
        console.print(f"{peer}: {spelled(settings)}")
