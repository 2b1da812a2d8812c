"""Targets by name: listed, shown, and this machine probed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_the_list_holds_shipped_targets_and_this_machine(kforge):
    rows = {row["name"]: row for row in json.loads(kforge("target", "list", "--json").stdout)}
    assert {"host", "zen4", "neoverse-v2"} <= set(rows)
    assert rows["host"]["figures"] == "measured"
    assert rows["zen4"]["figures"] == "vendor"


def test_an_unreadable_file_does_not_hide_the_others(kforge, home: Path):
    (home / "targets" / "broken.toml").write_text("name = ")
    done = kforge("target", "list")
    assert done.returncode == 0
    assert "unreadable" in done.stdout
    assert "zen4" in done.stdout


def test_show_gives_bandwidth_in_gigabytes_and_peaks_in_gigaoperations(kforge):
    text = kforge("target", "show", "host").stdout
    assert "10.0 GB/s" in text
    assert "500 Gop/s" in text
    document = json.loads(kforge("target", "show", "host", "--json").stdout)
    assert document["bandwidth"][1] == {"threads": 2, "value": 1e10, "spread": 0.0, "source": "measured"}
    assert document["peaks"]["int8_dot"]["value"] == 5e11
    assert document["identity"]


@pytest.mark.parametrize("words", [("show", "no-such-target"), ("probe", "--name", "../elsewhere")])
def test_bad_input_is_one_sentence_and_exit_code_2(kforge, words):
    done = kforge("target", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("kforge: ")
    assert done.stderr.count("\n") == 1


def test_probing_without_a_compiler_says_what_to_install(kforge):
    done = kforge("target", "probe", PATH="/nonexistent", CXX="")
    assert done.returncode == 2
    assert "install g++" in done.stderr


@pytest.mark.slow
def test_a_probe_measures_this_machine_and_writes_where_it_is_told(kforge, tmp_path: Path):
    file = tmp_path / "mine.toml"
    document = json.loads(kforge("target", "probe", "--name", "mine", "-o", file, "--json").stdout)
    assert document["name"] == "mine"
    assert document["file"] == str(file)
    assert all(peak["value"] > 1e9 for peak in document["peaks"].values())
    shown = json.loads(kforge("target", "show", file, "--json").stdout)
    assert [b["value"] for b in shown["bandwidth"]] == [b["value"] for b in document["bandwidth"]]


def test_a_gpu_is_listed_with_who_builds_for_it_and_shown_with_its_limits(kforge):
    rows = {row["name"]: row for row in json.loads(kforge("target", "list", "--json").stdout)}
    assert rows["nvidia-h200"]["figures"] == "vendor"
    assert rows["zen4"]["backends"] == "cpp" and rows["aws-trainium2"]["backends"] == ""
    assert "described only" in kforge("target", "list").stdout
    text = kforge("target", "show", "nvidia-h200").stdout
    assert "132 units" in text and "recognised by: 'NVIDIA H200'; PCI 10de:2335" in text
    assert "a unit: 2,048 threads, 64 warps, 32 blocks, 65,536 registers, 233,472 bytes of shared memory" in text
    document = json.loads(kforge("target", "show", "nvidia-h200", "--json").stdout)
    assert document["gpu"]["power_watts"] == 700 and document["backends"] == ["triton"]
