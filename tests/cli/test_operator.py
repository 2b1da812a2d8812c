"""``kforge operator``: what an imported operator says of itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kforge.cli.operator import app
from kforge.core.errors import KforgeError
from kforge.operators import get, import_file
from kforge.operators.axes import workload_of
from kforge.operators.import_record import Original, write
from kforge.operators.imported import Imported
from kforge.tuner.options import TuneOptions
from kforge.tuner.tune_operator import operator_task

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))
from imported_graphs import record_of, softmax

SCALED = record_of(softmax(37), "soft").model_copy(update={
    "scaling": "batch_size 4096 -> 16", "originals": (Original(name="x", shape=(4096, 37)),),
    "flags": ("its output hardly depends on its input: not counted",)})


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    write(SCALED, import_file("soft"))


def said(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exception is None, result.exception
    return result.stdout


def test_show_prints_tensors_steps_bound_scaling_and_flags() -> None:
    text = said("show", "soft")
    assert "soft: soft(graph=g" in text and "@B=20, from mine.py" in text
    assert "scaled to fit this machine: batch_size 4096 -> 16; the file has x[4096,37]" in text
    assert "flagged: its output hardly depends" in text
    assert "5 steps" in text and "max 1" in text and "[B, 37]" in text and "returned: y" in text
    assert "4 times a running error analysis" in text


def test_json_is_the_record_and_what_follows_from_it() -> None:
    document = json.loads(said("show", "soft", "--json"))
    assert document["record"]["batch"] == 20 and document["tensors"][1] == {
        "name": "out", "role": "out", "shape": [20, 37]}
    assert document["flags"] and document["operations"] > 0
    (row,) = json.loads(said("list", "--json"))
    assert row["name"] == "soft" and row["workload"] == document["workload"]


def test_list_shows_broken_ones_too_and_rm_forgets() -> None:
    import_file("worse").write_text("{}")
    text = said("list")
    assert "soft" in text and "scaled: batch_size 4096 -> 16" in text and "unreadable" in text
    assert said("rm", "soft").strip() == "soft is forgotten"
    assert [row["name"] for row in json.loads(said("list", "--json"))] == ["worse"]


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(KforgeError, match="there is no imported operator 'other'; there is soft"):
        CliRunner().invoke(app, ["show", "other"], catch_exceptions=False)


def test_nothing_is_tried_on_a_flagged_operator() -> None:
    operator = get("soft")
    assert isinstance(operator, Imported)
    with pytest.raises(KforgeError, match="soft is flagged: its output hardly depends on its input: not c"):
        operator_task(operator, TuneOptions(operator="soft", batches=()))
    with pytest.raises(KforgeError, match="soft is flagged"):
        workload_of("soft", {}, lambda problem: 0)
