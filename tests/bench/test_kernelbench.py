"""``bench/kernelbench.py``: which problems it takes, what counts, and a whole comparison of a small problem."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from kernelbench import Compared, Row, geometric_mean, name_of, print_table, problems_in, teller, tuned  # noqa: E402
from rich.console import Console  # noqa: E402

from kforge.core.errors import KforgeError  # noqa: E402
from kforge.core.summary import Summary  # noqa: E402
from kforge.operators.import_record import is_name  # noqa: E402

PROBLEM = """
import torch
import torch.nn as nn

batch_size = 64
features = 96


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.linear = nn.Linear(features, features // 2)
        self.register_buffer("shift", torch.arange(features // 2).float())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x) + self.shift * 0.01, dim=-1) * y


def get_inputs():
    return [torch.rand(batch_size, features), torch.randn(batch_size, features // 2)]


def get_init_inputs():
    return [features]
"""
ONE = Summary(1e-5, 0.01, 10)


def row(ratio: float, lower: float = 0.1, upper: float = 0.2, wrong: str = "", **known: object) -> Row:
    found = Compared({"ours": ONE, "eager": ONE}, {"eager": Summary(ratio, 0.01, 10)}, "eager", ratio - 1, lower, upper,
                     Summary(0.5, 0.01, 10), "memory", wrong)
    return Row("level1/1_a.py", compared=found, **known)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("level1/2_Norm.py", "level1/23_Softmax.py", "level1/230_Other.py", "level1/_notes.py", "level2/23_Both.py")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PROBLEM)
    return tmp_path


def test_problems_are_named_by_level_and_number(folder: Path) -> None:
    def chosen(*only: str) -> list[str]:
        return [path.relative_to(folder).as_posix() for path in problems_in(folder, only)]

    assert len(chosen()) == 4
    assert chosen("level1/23") == ["level1/23_Softmax.py"]
    assert chosen("level1/23_Softmax.py", "level2/23") == ["level1/23_Softmax.py", "level2/23_Both.py"]
    assert chosen("level3/1") == []
    assert name_of(folder / "level1/23_Softmax.py", folder) == "level1_23_softmax"
    assert name_of(folder / "level1/2_Norm.py", folder / "level1") == "level1_2_norm"
    assert name_of(Path("1/2_Norm.py"), Path("1")) == "problem_2_norm"
    assert is_name(name_of(folder / f"level1/2_{'Long' * 20}.py", folder))


def test_a_ratio_counts_three_at_most_and_what_is_wrong_or_flagged_not_at_all() -> None:
    rows = [row(12.0), row(1 / 3, -0.7, -0.6), row(9.0, wrong="the kernel: too far"), row(9.0, flags=("constant",)),
            Row("level1/2_b.py", reason="it uses a sort")]
    assert geometric_mean(rows) == pytest.approx(1.0)
    assert [r.compared.word for r in rows if r.compared] == ["beat", "lose", "wrong", "beat"]
    assert row(1.0, -0.01, 0.01).compared.word == "tie"  # type: ignore[union-attr]
    assert geometric_mean(rows[2:]) is None


def test_a_result_says_how_near_the_limit_either_side_is() -> None:
    def why(ratio: float, share: float) -> str:
        found = row(ratio).compared
        assert found is not None
        return dataclasses.replace(found, share=Summary(share, 0.01, 10)).why

    assert why(2.0, 0.8) == "80 % of the limit (memory), eager 40 %"
    assert why(1.02, 0.95) == "95 % of the limit (memory), eager 93 %: no room"
    assert "above 100 %" in why(0.5, 0.9)  # eager would have to be at 180 %


def test_the_table_names_problems_with_result_and_reason() -> None:
    console = Console(file=(out := io.StringIO()), width=200)
    rows = [row(12.0), row(0.5, -0.5, -0.4), row(1.0, -0.01, 0.01), Row("level1/2_b.py", reason="it uses [a sort]")]
    print_table(rows, 1, console)
    text = out.getvalue()
    assert all(word in text for word in ("beat", "lose", "tie", "50 % of the limit (memory)", "it uses [a sort]"))
    assert "4 problems, 0 imported, 3 counted: 1 beat, 1 tie, 1 lose; geometric mean of the ratios, 3 at most" in text
    assert "1 thread, interleaved" in text


def test_what_a_tune_says_is_passed_on_with_the_problems_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    args = argparse.Namespace(budget="1s", threads="many", runs_dir=tmp_path, agent="", max_usd=0, max_tokens=0,
                              max_calls=0, max_trials=0, turn=None)
    with pytest.raises(KforgeError, match=r"tuning: .*--threads"):
        tuned("smollm2-135m", args, teller("[1/2] level1/1_Own.py"))
    assert capsys.readouterr().err.startswith("[1/2] level1/1_Own.py: ")


@pytest.mark.slow
def test_a_problem_is_imported_tuned_and_compared_with_the_module_it_came_from(tmp_path: Path) -> None:
    problems = tmp_path / "problems"
    (problems / "level1").mkdir(parents=True)
    (problems / "level1" / "1_Own.py").write_text(PROBLEM)
    (problems / "level1" / "2_Broken.py").write_text("def get_inputs(): return []\n")
    env = {**os.environ, "KFORGE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "kernelbench.py"), "--problems", str(problems), "--budget", "20s",
         "--rounds", "10", "--threads", "1", "--runs-dir", str(tmp_path / "runs"), "--json", str(tmp_path / "kb.json")],
        capture_output=True, text=True, env=env, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert "[1/2] level1/1_Own.py: importing" in said and any("tuning for 20s" in line for line in said)
    assert any(line.startswith("[2/2] level1/2_Broken.py: ") and "Model" in line for line in said)
    document = json.loads((tmp_path / "kb.json").read_text())
    own, broken = document["problems"]
    assert broken["compared"] is None and "Model" in broken["reason"]
    assert own["reason"] == "" and own["counts"], own
    assert own["compared"]["wrong"] == "" and own["word"] in ("beat", "tie", "lose")
    assert own["compared"]["seconds"]["ours"]["count"] == own["compared"]["ratios"]["eager"]["count"] == 10
    assert "compile" in own["compared"]["ratios"] or "torch.compile fails" in own["remarks"][0]
    assert document["geometric_mean"] is not None and document["machine"]["versions"]["torch"]
