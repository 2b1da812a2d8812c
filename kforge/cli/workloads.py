"""``kforge workloads``: every operator call of a step, how often, what it costs, and what the target allows."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from kforge.cli.generate import Act, Kv
from kforge.cli.numbers import numbers
from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV

if TYPE_CHECKING:
    from kforge.models.workloads import PricedRow


_FILE_WIDTH = 140  # columns when the output is no terminal
_WORDS_WHOLE = 80  # columns from which on there is room for them beside the shapes


def workloads(
    model: Annotated[str, typer.Argument(help="A file, a folder, or the name of a known model.")],
    batch: Annotated[str, typer.Option(help="Batch sizes of decode steps, with commas.")] = "1,8",
    context: Annotated[str, typer.Option(help="Context lengths of decode steps, with commas.")] = "512",
    prefill: Annotated[int, typer.Option(help="Tokens of the prefill chunk; 0 for none.")] = 512,
    kv: Kv = DEFAULT_KV,
    act: Act = DEFAULT_ACT,
    target: Annotated[str, typer.Option(help="Target name, or a TOML file.")] = "host",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every operator call of a decode step and of a prefill chunk, with the time that the target allows."""
    from kforge.models import load
    from kforge.models.graph import StepOptions
    from kforge.models.workloads import priced
    from kforge.models.workloads import workloads as rows_of
    from kforge.targets.files import load_target

    rows = rows_of(load(model), numbers("--batch", batch), numbers("--context", context), prefill,
                   StepOptions(kv=kv, act=act))
    table = priced(rows, load_target(target))
    if as_json:
        print(json.dumps([_document(row) for row in table], indent=1))
    else:
        _print(table)


def _document(priced: PricedRow) -> dict:
    workload = priced.row.workload
    return {
        "mode": priced.row.mode.name, "call": priced.row.kind.value, "operator": workload.problem.operator,
        "static": dict(workload.problem.static), "dynamic": workload.axes, "count": workload.count,
        "streamed_bytes": priced.cost.streamed_bytes, "hot_bytes": priced.cost.hot_bytes,
        "operations": dict(priced.cost.operations), "limit_seconds": priced.limit.seconds,
        "bound_by": priced.limit.bound_by, "step_seconds": priced.seconds, "share": priced.share,
    }


def _print(rows: list[PricedRow]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    for mode, group in groupby(rows, key=lambda row: row.row.mode):
        step = list(group)
        total = sum(row.seconds for row in step)
        table = Table(title=f"{mode.name}: at best {1e3 * total:.3f} ms, {mode.tokens / total:.0f} tokens/s"
                      if total else mode.name, title_justify="left", box=box.SIMPLE_HEAD)
        figures = ("count", "bytes", "operations", "limit us", "share")
        for name in ("call", "shape", *figures, "bound by"):
            table.add_column(name, justify="right" if name in figures else "left", overflow="fold",
                             no_wrap=name != "shape" and console.width >= _WORDS_WHOLE)
        for row in step:
            workload = row.row.workload
            count = workload.count
            moved = count * (row.cost.streamed_bytes + row.cost.hot_bytes)
            table.add_row(row.row.kind.value, _shape(row), f"{count:.0f}", _si(moved),
                          _si(count * sum(n for _, n in row.cost.operations)), f"{1e6 * row.seconds:.1f}",
                          f"{100 * row.share:.1f} %", row.limit.bound_by)
        console.print(table)


def _shape(row: PricedRow) -> str:
    problem, axes = row.row.workload.problem, row.row.workload.axes
    static = dict(problem.static)
    match problem.operator:
        case "linear":
            extra = "" if static["epilogue"] == "none" else f" {static['epilogue']}"
            return f"M={axes['M']} K={static['K']} N={static['N']} {static['weight']} {static['act']}{extra}"
        case "moe_linear":
            extra = "" if static["epilogue"] == "none" else f" {static['epilogue']}"
            return (f"T={axes['T']} {static['k']} of {static['E']} experts K={static['K']} N={static['N']} "
                    f"{static['weight']} {static['act']}{extra}")
        case "paged_attention":
            more = "".join(f" {name}={static[name]}" for name in ("window", "sinks") if name in static)
            return (f"S={axes['S']} T={axes['T']} context={axes['max_context']} {static['Hq']}/{static['Hkv']} heads "
                    f"D={static['D']} {static['kv']}{more}")
    shown = {**axes, **{k: v for k, v in static.items() if k in ("H", "V", "D", "I", "E", "k")}}
    return " ".join(f"{k}={v}" for k, v in shown.items() if k not in ("pages", "positions", "B"))


def _si(value: float) -> str:
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.3g} {unit}".rstrip()
        value /= 1000
    return f"{value:.3g} T"
