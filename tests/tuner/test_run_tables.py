"""Nothing of a table is cut off, however narrow the terminal or the log is."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import run_folders
from rich.console import Console
from rich.table import Table

from kforge.cli.run_tables import engine_table, problem_table, rate_table
from kforge.cli.tables import folding
from kforge.core.summary import Summary
from kforge.engine.measure import Figure
from kforge.tuner.promotion import EngineVerdict
from kforge.tuner.run_view import view_of

PROBLEM = "linear(K=576,N=3072,act=a8,bias=0,epilogue=silu_gate,rows=32,weight=q4_1)"


def rates() -> Table:
    figures = [
        Figure(kind, setting, Summary(457.4, 0.031, 5), ratio, 0.05, ())
        for setting in run_folders.SETTINGS
        for kind, ratio in (("torch bf16", None), ("default", Summary(12.2, 0.02, 5)), ("tuned", Summary(1.02, 0.1, 5)))
    ]
    return rate_table(figures, "tokens/s")


def problems(folder: Path) -> Table:
    with run_folders.start(folder) as run:
        run_folders.search(run)
        run_folders.finish(run)
    table = problem_table(view_of(run.path))
    assert table is not None
    return table


def engine() -> Table:
    return engine_table(
        [EngineVerdict(PROBLEM, mode, -0.021, -0.034, 0.0, True, 960, 16) for mode in run_folders.MODES]
    )


def many() -> Table:
    table = folding(*(f"column {n}" for n in range(6)), title="x")
    table.add_row(*("word " * n + "c0ffee" * 6 for n in range(6)))
    return table


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["rates", "problems", "engine", "many"])
def test_every_row_ends_in_a_border_and_every_letter_of_every_cell_is_there(name: str, width: int, tmp_path: Path):
    table = {"rates": rates, "problems": lambda: problems(tmp_path), "engine": engine, "many": many}[name]()
    console = Console(file=(out := io.StringIO()), width=width)
    console.print(table)
    rows = [line for line in out.getvalue().splitlines() if line.startswith("│")]
    assert rows and all(line.endswith("│") and len(line) <= width for line in rows)
    columns = ["".join(cells) for cells in zip(*(line.strip("│").split("│") for line in rows), strict=True)]
    for column, shown in zip(table.columns, columns, strict=True):
        letters = re.sub(r"\s", "", shown)
        for cell in column.cells:
            assert re.sub(r"\s", "", str(cell)) in letters, cell


def test_cells_are_no_markup_and_move_no_cursor():
    table = folding("name")
    table.add_row("[/m] a[bold]b.py:[7] \x1b[2J")
    Console(file=(out := io.StringIO()), width=80).print(table)
    assert "[/m] a[bold]b.py:[7] \\u001b[2J" in out.getvalue() and "\x1b" not in out.getvalue()


def test_a_ratio_has_its_spread_and_says_what_it_is_the_median_of():
    console = Console(file=(out := io.StringIO()), width=200)
    console.print(rates())
    text = " ".join(out.getvalue().split())
    assert "1.02x ± 10.0 %" in text
    assert "the median over rounds of the ratio within a round" in text
    assert "context: what the cache holds" in text


def test_a_row_of_one_mode_does_not_speak_for_the_others():
    console = Console(file=(out := io.StringIO()), width=200)
    good = EngineVerdict(PROBLEM, "decode batch 1 context 512", 0.02, 0.01, 0.03, True, 960, 16)
    bad = EngineVerdict(PROBLEM, "prefill 512", 0.0, -0.03, 0.01, True, 960, 16)
    console.print(engine_table([good, bad]))
    text = out.getvalue()
    assert "promoted" not in text
    assert "not slower" in text and "may be slower" in text
