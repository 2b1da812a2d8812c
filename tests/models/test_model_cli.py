from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from kforge.cli.main import app
from kforge.cli.workloads import _print
from kforge.core.errors import KforgeError
from kforge.core.target import Peak, Target
from kforge.models.synth_plan import plan
from kforge.models.workloads import priced, workloads

TARGET = Target("paper", "cpu", "none", "none", "x86_64", (), 2, (), 1 << 34, ((2, Peak(10e9)),),
                (("fp32_fma", Peak(1e11)), ("int8_dot", Peak(4e11)), ("bf16_dot", Peak(2e11))))


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def test_synth_writes_a_file_that_show_describes(tmp_path, monkeypatch):
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path))
    done = run("model", "synth", "tiny-llama-test", "--format", "q8_0", "--layers", "1")
    assert done.exit_code == 0, done.output
    path = done.stdout.strip()
    assert path == str(tmp_path / "models" / "tiny-llama-test-1l-q8_0.gguf")
    shown = json.loads(run("model", "show", path, "--json").stdout)
    assert shown["layers"] == 1 and shown["formats"] == "8 x q8_0" and shown["chat template"] == "yes"
    assert shown["weight bytes"] == shown["weights"] // 32 * 34


def test_a_long_path_is_shown_whole_in_a_narrow_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    (folder := tmp_path / ("long-name-" * 12)).mkdir()
    path = run("model", "synth", "tiny-llama-test", "--layers", "1", "--out", str(folder / "x.gguf")).stdout.strip()
    assert f"path                          {path}" in run("model", "show", path).stdout


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_model_of_another_family_is_written_and_shown(tmp_path, family):
    path = tmp_path / "x.gguf"
    assert run("model", "synth", f"tiny-{family}-test", "--out", str(path)).exit_code == 0
    shown = json.loads(run("model", "show", str(path), "--json").stdout)
    assert shown["family"] == family and "style neox" in shown["rope"]


def test_bad_input_is_a_kforge_error(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    assert isinstance(run("model", "show", str(file)).exception, KforgeError)
    assert isinstance(run("model", "synth", "llama-9", "--out", str(file)).exception, KforgeError)
    assert isinstance(run("workloads", str(file), "--batch", "one").exception, KforgeError)


@pytest.mark.parametrize("file_format", ["q4_0", "q4_k_m", "bf16"])
def test_shares_of_a_step_add_up(file_format):
    rows = priced(workloads(plan("llama-3.1-8b", file_format)), TARGET)
    for mode in {row.row.mode for row in rows}:
        step = [row for row in rows if row.row.mode == mode]
        assert sum(row.share for row in step) == pytest.approx(1.0)
        assert all(row.seconds == row.limit.seconds * row.row.workload.count for row in step)


def test_decode_at_batch_1_is_bound_by_the_weights_bytes():
    rows = priced(workloads(plan("llama-3.2-1b", "q8_0"), batch=(1,), context=(1,), prefill=0), TARGET)
    weights = 16 * (2048 * (2048 * 2 + 2 * 512) + 3 * 2048 * 8192) + 128_256 * 2048
    assert sum(row.seconds for row in rows) == pytest.approx(weights * 34 / 32 / 10e9, rel=0.02)


def test_the_table_names_every_call(capsys):
    _print(priced(workloads(plan("llama-3.2-1b", "q4_0"), batch=(1,), prefill=16), TARGET))
    out = capsys.readouterr().out
    for words in ("decode batch 1 context 512", "prefill 16", "gate_up", "M=16 K=2048 N=16384 q4_0 a8 silu_gate",
                  "memory", "tokens/s"):
        assert words in out


@pytest.mark.parametrize("width", [60, 80])
def test_no_word_of_the_table_is_cut_in_a_narrow_terminal(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    _print(priced(workloads(plan("llama-3.2-1b", "q4_0"), batch=(1,), prefill=0), TARGET))
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width and not any("\u2026" in line for line in lines)
    assert sum(line.count("%") for line in lines) == 11  # a share for each call
    assert width < 80 or any("gate_up" in line and "30199.0" in line for line in lines)
