"""The report of a run: whole, in one file, for every state that a run can be in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import run_folders
from typer.testing import CliRunner

from kforge.cli.runs import app
from kforge.core.errors import KforgeError
from kforge.core.workload import Workload
from kforge.tuner.report import failure_rows, layout_rows, problem_rows, render
from kforge.tuner.report_names import short_problem
from kforge.tuner.report_text import unmeasured
from kforge.tuner.run_view import view_of


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    with run_folders.start(tmp_path) as folder:
        run_folders.search(folder)
        run_folders.finish(folder)
        return folder.path


def test_a_finished_run_shows_rates_gains_failures_verdicts_and_layouts(finished: Path):
    page = render(view_of(finished))
    for text in (
        ">finished<",
        "96.6 (1.15x ± 1.0 %)",
        "linear 576x960 q4_1 a8",
        "+21.4 % [+18.3, +24.6]",
        "decode batch 1 context 512 +6.2 %",
        ">promoted<",
        "incumbent stays: slower when judged",
        "1 kernel promoted by this run; 3 serve in all.",
        "slower than the incumbent",
        "was not declared in this scope",
        "inexact",
        "6.9 GB/s",
    ):
        assert text in page.replace("&#39;", "'"), text


def test_each_problem_has_its_best_against_the_limit_the_heaviest_first(finished: Path):
    rows = problem_rows(view_of(finished))
    assert [(r.problem, r.bucket, r.outcome) for r in rows] == [
        ("linear 576x960 q4_1 a8", "M=1", "promoted"),
        (
            "linear 576x960 q4_1 a8",
            "M=8",
            "served with rows 32 instead of 16, with which the engine was faster; incumbent stays: slower when judged",
        ),
        ("rms_norm H=576 residual=1", "T=1", "not judged"),
    ]
    assert (rows[2].first, rows[2].best, rows[2].limit, rows[2].of_limit) == ("2", "2", "1", "50 %")


def test_failures_are_counted_by_class_with_distinct_reasons(finished: Path):
    rows = failure_rows(view_of(finished))
    assert {(r.kind, r.count) for r in rows} == {("compile", 2), ("inexact", 2)}
    assert all(len(r.reasons) == 1 for r in rows)


def test_layouts_name_the_chosen_height_and_what_each_height_reached(finished: Path):
    (row,) = layout_rows(view_of(finished))
    assert row.chosen == (
        "rows 16 -> 32: engine +4.1 % in decode batch 1 context 512, +2.0 % in decode batch 8 context 512, "
        "+1.0 % in prefill 512; kept"
    )
    assert re.match(r"16: \S+ / \S+ us; 32: \S+ / \S+ us; 64: ", row.times)


def test_the_file_asks_for_nothing_outside_itself(finished: Path):
    page = render(view_of(finished))
    tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page)
    assert [tag for tag in tags if "src=" in tag or "href=" in tag] == ['<link rel="icon" href="data:,">']
    assert "Plotly.newPlot" in page


def test_a_run_killed_after_its_first_line_has_a_report_without_plots(tmp_path: Path):
    with run_folders.start(tmp_path) as folder:
        page = render(view_of(folder.path))
    assert ">unfinished<" in page
    assert "No trial has been timed." in page
    assert "Plotly" not in page


def test_a_run_that_is_going_on_is_reported_up_to_its_last_whole_line(tmp_path: Path):
    with run_folders.start(tmp_path) as folder:
        run_folders.search(folder, trials=7)
    with open(folder.path / "journal.jsonl", "a") as out:
        out.write('{"kind": "trial", "at": 9')
    view = view_of(folder.path)
    assert not view.finished
    assert len(view.tried) == 7 + 6 + 1
    assert "The judge has not been asked." in render(view)


def test_all_trials_failed_is_a_report_too(tmp_path: Path):
    with run_folders.start(tmp_path) as folder:
        run_folders.search(folder, trials=0)
    lines = (folder.path / "journal.jsonl").read_text().splitlines()
    (folder.path / "journal.jsonl").write_text("\n".join(line for line in lines if '"trial"' not in line) + "\n")
    assert "No trial that reads from memory has been timed." in render(view_of(folder.path))


def test_names_from_the_journal_cannot_become_markup(tmp_path: Path):
    with run_folders.start(tmp_path, model="</script><script>alert(1)</script>") as folder:
        run_folders.search(folder)
    page = render(view_of(folder.path))
    assert "<script>alert" not in page
    assert "expected <2>" not in page


def test_what_is_no_run_is_named(tmp_path: Path):
    with pytest.raises(KforgeError, match="not a run folder"):
        view_of(tmp_path)
    (tmp_path / "journal.jsonl").write_text('{"kind": "finished", "at": 1, "data": {}}\n')
    with pytest.raises(KforgeError, match="does not begin with a run's options"):
        view_of(tmp_path)
    (tmp_path / "journal.jsonl").write_text(
        '{"kind": "started", "at": 1, "data": {"options": {"new": 1}, "target": "h"}}\n'
    )
    with pytest.raises(KforgeError, match="another kforge"):
        view_of(tmp_path)


def test_keys_are_read_back(finished: Path):
    for point in view_of(finished).tried:
        assert Workload.parse(point.trial.workload).key == point.trial.workload
    assert short_problem("argmax(V=49152)") == "argmax V=49152"


def test_runs_are_listed_shown_and_reported_by_the_beginning_of_their_name(finished: Path, tmp_path: Path):
    runner = CliRunner()
    where = ["--runs-dir", str(tmp_path)]
    (row,) = json.loads(runner.invoke(app, ["list", "--json", *where]).stdout)
    assert (row["run"], row["trials"], row["failed"], row["accepted"]) == (finished.name, 45, 4, 1)
    shown = json.loads(runner.invoke(app, ["show", finished.name[:12], "--json", *where]).stdout)
    assert shown["failures"] == {"compile": 2, "inexact": 2}
    out = tmp_path / "mine.html"
    done = runner.invoke(app, ["report", "last", "-o", str(out), *where])
    assert (done.exit_code, done.stdout.strip(), out.stat().st_size > 1_000_000) == (0, str(out), True)
    assert runner.invoke(app, ["report", str(finished)]).exit_code == 0
    assert (finished / "report.html").is_file()
    missing = runner.invoke(app, ["show", "2019", *where])
    assert isinstance(missing.exception, KforgeError)


def test_what_is_shown_names_its_columns_and_says_what_serves(finished: Path, tmp_path: Path):
    shown = CliRunner().invoke(app, ["show", "last", "--runs-dir", str(tmp_path)]).stdout
    row = "decode batch 1 context 32-80: torch f32 21.0, default 84.0 (4.00x ± 1.0 %), tuned 96.6 (1.15x ± 1.0 %)"
    assert row in shown
    assert "in brackets how many times the kernels before" in shown
    assert "1 kernel promoted by this run; 3 serve in all." in shown
    assert "linear 576x960 q4_1 a8: promoted" in shown


def test_a_run_that_timed_nothing_says_so_and_names_the_last_that_did(finished: Path, tmp_path: Path):
    with run_folders.start(tmp_path) as folder:
        run_folders.served(folder)
    empty = folder.path.rename(tmp_path / "29990101-000000-later-0000")
    runner, where = CliRunner(), ["--runs-dir", str(tmp_path)]
    says = ("earlier runs had settled all 11 problems", f"the last run that timed any: {finished.name}")
    done = runner.invoke(app, ["report", "last", *where])
    assert done.stdout.strip() == str(empty / "report.html")
    for text in (done.stderr, runner.invoke(app, ["show", "last", *where]).stdout, (empty / "report.html").read_text()):
        assert all(words in text for words in says), text
    row = json.loads(runner.invoke(app, ["list", "--json", *where]).stdout)[-1]
    assert finished.name in row["unmeasured"] and row["serving"]["kernels"] == 0
    assert "default and tuned are the same kernels" in row["serving"]["text"]
    assert "the same kernels" in " ".join(runner.invoke(app, ["list", *where], env={"COLUMNS": "200"}).stdout.split())
    assert runner.invoke(app, ["report", finished.name, *where]).stderr == ""


def test_of_another_model_no_run_is_named(finished: Path, tmp_path: Path):
    with run_folders.start(tmp_path, "another") as folder:
        run_folders.search(folder)
    folder.path.rename(tmp_path / "29990101-000000-another-0000")
    with run_folders.start(tmp_path) as folder:
        run_folders.served(folder)
    assert f"the last run that timed any: {finished.name}." in unmeasured(view_of(folder.path))


@pytest.mark.slow
def test_a_browser_draws_every_plot_and_has_nothing_to_complain_of(finished: Path, tmp_path: Path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    (file := tmp_path / "report.html").write_text(render(view_of(finished)), encoding="utf-8")
    done = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert len(re.findall(r'<div id="plot\d" class="plot js-plotly-plot"', done.stdout)) == 5
