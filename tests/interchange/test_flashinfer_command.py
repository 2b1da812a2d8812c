"""``kforge flashinfer-bench`` as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fib_definitions as fib
import pytest

from kforge.cli import flashinfer_bench
from kforge.interchange.dataset import Broken
from kforge.interchange.definitions import Imported, Kind, Placed
from kforge.interchange.schema import Definition

ROOT = Path(__file__).resolve().parents[2]


def kforge(home: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "kforge.cli.main", "flashinfer-bench", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


def test_an_import_says_what_maps_onto_what(tmp_path: Path) -> None:
    documents = [
        fib.gemm("gemm"),
        fib.definition("moe", "moe", {"n": None}, {"x": ("n", "int64")}, {"y": ("n", "int64")}, "    return x"),
    ]
    folder = fib.write(tmp_path / "d", documents, {"gemm": [fib.workload("a", {"M": 8})]})
    done = kforge(tmp_path, "import", folder, "--json")
    assert done.returncode == 0, done.stderr
    gemm, moe = json.loads(done.stdout)["definitions"]
    assert (gemm["kind"], gemm["operator"]) == ("maps", "linear")
    assert gemm["workloads"] == ["K=512,N=640,act=f32,bias=0,epilogue=none,rows=32,weight=f16,M=8"]
    assert (moe["kind"], moe["operator"]) == ("not", None) and "no operator of the type moe" in moe["notes"][0]


def test_the_table_names_the_reasons_and_nothing_at_all_is_exit_code_1(tmp_path: Path) -> None:
    folder = fib.write(tmp_path / "d", [fib.gemm("wide[red]", dtype="float8_e4m3fn")])
    done = kforge(tmp_path, "import", folder)
    assert done.returncode == 1 and "0 of 1 definitions come in" in done.stdout and "wide[red]" in done.stdout
    assert "floats of 16 or 32 bits" in " ".join(done.stdout.split())


def test_bad_input_ends_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text("{")
    for words, said in (
        (("import", tmp_path / "torn.json"), "torn.json"),
        (("export", tmp_path), "not an empty folder"),
    ):
        done = kforge(tmp_path / "home", *words)
        assert done.returncode == 2 and done.stdout == "", done
        assert done.stderr.startswith("kforge: ") and done.stderr.count("\n") == 1 and said in done.stderr


def test_nothing_that_strangers_name_reaches_the_terminal_as_more_than_text(capsys: pytest.CaptureFixture[str]) -> None:
    odd = "a\x1b]0;title\x07\u202e[red]b\ud800"
    placed = Placed(
        Definition.model_validate(fib.gemm("x") | {"name": odd[:-1]}), Kind.NOT, notes=(odd,), refused=(odd,)
    )
    flashinfer_bench._print(Imported((placed,), (Broken(odd, odd),), (odd,)), {odd: odd})
    said = capsys.readouterr().out
    assert not {c for c in said if ord(c) < 32} - {"\n"} and "\u202e" not in said
    assert said.count("[red]b") == 8


@pytest.mark.slow
def test_a_reference_that_maps_onto_nothing_becomes_an_operator_where_it_can(tmp_path: Path) -> None:
    shapes = ({"n": None, "h": 48}, {"x": ("n h", "bfloat16")}, {"y": ("n h", "bfloat16")})
    documents = [
        fib.definition("Swish-48", "silu", *shapes, "    return (x.float() * torch.sigmoid(x.float())).to(x.dtype)"),
        fib.definition("loops", "other", *shapes, "    return x if x.sum() > 0 else -x"),
        fib.rows("scattered", 500, "int64") | {"op_type": "scatter"},
    ]
    folder = fib.write(
        tmp_path / "d", documents, {"Swish-48": [fib.workload("a", {"n": 8}), fib.workload("b", {"n": 100})]}
    )
    done = kforge(tmp_path, "import", folder, "--json")
    assert done.returncode == 0, done.stderr
    entries = {e["definition"]: e for e in json.loads(done.stdout)["definitions"]}
    made = entries["Swish-48"]
    assert (made["kind"], made["operator"]) == ("imported", "fib_swish_48")
    assert [w.rpartition(",")[2] for w in made["workloads"]] == ["B=8", "B=100"]
    assert {entries[name]["kind"] for name in ("loops", "scattered")} == {"not"}
    assert "its input ids is int64" in entries["scattered"]["notes"][1]
    assert (tmp_path / "operators" / "fib_swish_48.json").is_file()
