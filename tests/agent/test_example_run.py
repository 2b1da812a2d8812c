"""The run that the repository keeps as an example is thought again to the byte, and is of no machine in particular."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kforge.cli.runs import app

RUNS = Path(__file__).resolve().parents[2] / "runs"
EXAMPLE, REAL = RUNS / "0-example", RUNS / "1-rms-norm"
MOST_BYTES = {EXAMPLE: 300_000, REAL: 500_000}
AGAIN = "make it anew: python tests/agent/record_example.py"
REAL_AGAIN = "a language model's run cannot be made the same again: runs/README.md says how another takes its place"


def kept(run: Path) -> list[Path]:
    return [file for file in run.rglob("*") if file.is_file() and file.name != "report.html"]


def test_every_prompt_and_template_of_the_example_comes_again_to_the_byte() -> None:
    done = CliRunner().invoke(app, ["replay", "0-example", "--runs-dir", str(RUNS)])
    assert done.exit_code == 0, f"{done.stdout}{done.exception}; {AGAIN}"
    assert re.search(r"^3 ideas, [4-9] prompts, 0 differ$", done.stdout, re.MULTILINE), done.stdout


def test_so_does_the_run_of_a_real_model() -> None:
    done = CliRunner().invoke(app, ["replay", REAL.name, "--runs-dir", str(RUNS)])
    assert done.exit_code == 0, f"{done.stdout}{done.exception}; {REAL_AGAIN}"
    assert re.search(r"^3 ideas, 4 prompts, 0 differ$", done.stdout, re.MULTILINE), done.stdout


def test_its_report_shows_all_of_it(tmp_path: Path) -> None:
    where = ["--runs-dir", str(RUNS)]
    done = CliRunner().invoke(app, ["report", "0-example", "-o", str(tmp_path / "report.html"), *where])
    assert done.exit_code == 0, done.exception
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    money = "Accepted kernels of models|No kernel of a model"
    for text in ("repair of idea-", "What was said", r"\+    Lanes kept", money):
        assert re.search(text, page), text
    assert "idea-000" in CliRunner().invoke(app, ["show", "0-example", *where]).stdout


@pytest.mark.parametrize("run", MOST_BYTES, ids=lambda run: run.name)
def test_it_is_small_and_names_no_place_of_the_machine_that_made_it(run: Path) -> None:
    assert sum(file.stat().st_size for file in kept(run)) < MOST_BYTES[run]
    for file in kept(run):
        assert not re.search(r"/(?:home|root|tmp|var|work|opt|mnt|Users)/", file.read_text(encoding="utf-8")), file
