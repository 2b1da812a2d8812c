"""Rows of bare steps: decode steps of so many sequences at a depth, and the tokens of a prompt."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kforge.core.summary import Summary
from kforge.targets.probe import measure_bandwidth
from peers.goals import beside, required
from peers.process import Process

REST = 0.05  # seconds in which the spinning threads of the side before go to sleep


@dataclass(frozen=True)
class Row:
    """One comparison: ``tokens`` prompt tokens, or decode steps of ``batch`` sequences at ``depth``."""

    name: str
    mode: str
    batch: int
    depth: int
    tokens: int

    def request(self) -> dict[str, object]:
        return {"mode": self.mode, "batch": self.batch, "depth": self.depth, "tokens": self.tokens}

    @property
    def produced(self) -> int:
        return self.tokens * (self.batch if self.mode == "decode" else 1)


def rows_for(path: Path, quick: bool) -> list[Row]:
    """Rows of a dense model, a run of which lasts about a second for a file of this size."""
    steps = (64 if weight_bytes(path) < 3e8 else 24) // (2 if quick else 1)
    decode = [
        Row(f"batch {batch}", "decode", batch, 64, max(steps // part, 4))
        for batch, part in ((1, 1), (4, 2), (8, 2), (16, 3), (32, 6))
    ]
    return [*decode, Row("prefill 512", "prefill", 1, 0, 512)]


def moe_rows(quick: bool) -> list[Row]:
    """Of a mixture of experts cut to a few layers."""
    steps = 16 if quick else 32
    decode = [
        Row(f"batch {batch}", "decode", batch, 64, max(steps // part, 4)) for batch, part in ((1, 1), (8, 4), (32, 8))
    ]
    return [*decode, Row("prefill 512", "prefill", 1, 0, 512)]


def depth_rows(quick: bool, added: str = "") -> list[Row]:
    """One sequence behind a long prompt; ``added`` to the name."""
    return [Row(f"batch 1, depth 8192{added}", "decode", 1, 8192, 8 if quick else 24)]


@dataclass(frozen=True)
class StepResult:
    """Figures of a row. ``share_of_bandwidth``: of a decode step of a dense model, bytes of weights that it must read
    over its time and the bandwidth measured beside it; empty elsewhere."""

    group: str
    model: str
    row: str
    peer: str  # the side beside kforge with the least median
    ratio: Summary
    required: float | None
    tokens_per_second: dict[str, Summary]
    share_of_bandwidth: dict[str, Summary]
    bandwidth: Summary


def compare(
    group: str, path: Path, rows: list[Row], sides: list[Process], rounds: int, threads: int, console: Console
) -> list[StepResult]:
    """Interleaved rounds: every side once a round, in alternating order, the bandwidth probed beside them."""
    results = []
    for row in rows:
        seconds: dict[str, list[float]] = {s.name: [] for s in sides}
        bandwidth = []
        for side in sides:
            side.ask(row.request())  # warm: contexts, programs, pages
            time.sleep(REST)
        for n in range(rounds):
            bandwidth.append(measure_bandwidth(threads, seconds=0.1).value)
            for side in sides if n % 2 == 0 else sides[::-1]:
                seconds[side.name].append(float(side.ask(row.request())["seconds"]))  # type: ignore[arg-type]
                time.sleep(REST)
        results.append(_figures(group, path, row, seconds, bandwidth))
        console.print(_line(results[-1]))
    return results


def _figures(
    group: str, path: Path, row: Row, seconds: dict[str, list[float]], bandwidth: list[float]
) -> StepResult:
    peers = [name for name in seconds if name != "kforge"]
    best = min(peers, key=lambda name: Summary.of(seconds[name]).median)
    ratio = Summary.of([p / k for p, k in zip(seconds[best], seconds["kforge"], strict=True)])
    tokens = {name: Summary.of([row.produced / s for s in times]) for name, times in seconds.items()}
    step_bytes = weight_bytes(path) * row.tokens
    share = (
        {
            name: Summary.of([step_bytes / s / b for s, b in zip(times, bandwidth, strict=True)])
            for name, times in seconds.items()
        }
        if row.mode == "decode" and group == "steps"  # not all experts are read, and a deep cache is read, too
        else {}
    )
    asked = required(group, row.name, "speed")
    return StepResult(group, path.stem, row.name, best, ratio, asked, tokens, share, Summary.of(bandwidth))


def weight_bytes(path: Path) -> int:
    """Bytes that a decode step must read at least: the file's tensors, the embedding table once (tied or gathered)."""
    return path.stat().st_size


def _line(r: StepResult) -> str:
    share = r.share_of_bandwidth.get("kforge")
    return f"{r.model} {r.row}: kforge / llama.cpp ({r.peer}) = {beside(r.group, r.row, 'speed', r.ratio)}" + (
        f", {100 * share.median:.0f} % of the measured bandwidth" if share else ""
    )


def print_steps(results: list[StepResult], console: Console) -> None:
    table = Table(title="kforge / llama.cpp, same file, same threads, interleaved")
    for column in ("model", "row", "kforge tok/s", "llama.cpp tok/s", "built by", "ratio", "of bandwidth", "GB/s"):
        table.add_column(column, justify="right" if column not in ("model", "row") else "left")
    for r in results:
        share = r.share_of_bandwidth.get("kforge")
        table.add_row(
            r.model,
            r.row,
            str(r.tokens_per_second["kforge"]),
            str(r.tokens_per_second[r.peer]),
            r.peer,
            beside(r.group, r.row, "speed", r.ratio),
            f"{100 * share.median:.0f} %" if share else "",
            f"{r.bandwidth.median / 1e9:.1f}",
        )
    console.print(table)
