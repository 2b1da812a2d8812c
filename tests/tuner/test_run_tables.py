"""Nothing of a table is cut off, however narrow the terminal or the log is."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
import run_folders
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from kforge.cli.run_tables import engine_table, limit_lines, problem_table, rate_table
from kforge.cli.runs import app as runs
from kforge.cli.tables import folding, show
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


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_names_that_people_copy_are_never_broken(width: str, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", width)
    table = folding("run", "of", "came to", whole=("run",))
    names = ["20261130-173100-gelu-softmax-ab12", "20261130-173100-a-name-of-thirty-two-letters-yes-ab12"]
    for name in names:
        table.add_row(name, "a-model-of-a-name.gguf", "finished, 45 trials (4 failed), 1 accepted")
    show(table)
    lines = capsys.readouterr().out.splitlines()
    assert all(any(name in line for line in lines) for name in names)
    if width == "80":
        assert max(map(len, lines)) <= 80
    others = "".join("".join(line.strip("│").split("│")[1:]) for line in lines if line.startswith("│"))
    assert "finished" in others.replace(" ", "")


def test_runs_are_listed_with_whole_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with run_folders.start(tmp_path, "a-model-of-a-rather-long-name") as run:
        run_folders.search(run)
        run_folders.finish(run)
    text = CliRunner().invoke(runs, ["list", "--runs-dir", str(tmp_path)], env={"COLUMNS": "80"}).stdout
    assert any(run.id in line for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 80


def test_kernels_above_the_limit_send_to_the_probe(tmp_path: Path):
    with run_folders.start(tmp_path) as run:
        run_folders.search(run)
    view = view_of(run.path)
    assert limit_lines(view) == []
    tasks = tuple(dataclasses.replace(task, buckets=tuple(dataclasses.replace(b, limit=1.0) for b in task.buckets))
                  for task in view.tasks)
    (line,) = limit_lines(dataclasses.replace(view, tasks=tasks))
    assert line.startswith("3 buckets above 100 %") and "kforge target probe" in line


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
