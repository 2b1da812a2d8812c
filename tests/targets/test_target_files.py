"""Target files: what is shipped, what is refused, and when this machine is probed again."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kforge.core.errors import KforgeError
from kforge.core.paths import shipped
from kforge.core.target import Level, Peak, Target
from kforge.targets import host, list_targets, load_target, probe, save_target
from kforge.targets.cpu import KERNEL_FEATURES, read_cpu

CURATED = ("apple-m4", "neoverse-v2", "sapphire-rapids", "x86-64-v3", "zen4")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def no_compiler(tmp_path, monkeypatch) -> None:
    """Probing then measures nothing, which makes it quick."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("name", CURATED)
def test_curated_targets_are_plausible_and_name_their_sources(name):
    target = load_target(name)
    assert target.name == name and set(target.features) <= KERNEL_FEATURES
    figures = [peak for _, peak in (*target.bandwidth, *target.peaks)]
    assert all(len(peak.source) > 20 and peak.spread == 0 for peak in figures)
    assert 2e9 < target.best_bandwidth() / target.cores < 60e9  # bytes/s of a core's share
    per_core = {peak: target.peak(peak) / target.cores for peak in ("fp32_fma", "bf16_dot", "int8_dot")}
    assert 50e9 < per_core["fp32_fma"] <= per_core["bf16_dot"] <= per_core["int8_dot"] < 1e12
    assert all(1 <= cache.shared_by <= target.cores for cache in target.caches)


def test_curated_targets_are_listed_and_told_apart():
    assert set(CURATED) <= set(list_targets())
    assert len({load_target(name).identity for name in CURATED}) == len(CURATED)


def test_a_target_survives_its_file(home):
    levels = tuple(Level(name, Peak(9e10, 0.01), Peak(1.25e-9, 0.02)) for name in ("L1", "memory"))
    target = dataclasses.replace(load_target("zen4"), name="mine", levels=levels)
    assert save_target(target) == home / "targets/mine.toml"
    assert load_target("mine") == target and load_target(home / "targets/mine.toml") == target
    assert "mine" in list_targets()


def test_the_users_file_wins_over_a_shipped_one():
    save_target(dataclasses.replace(load_target("zen4"), cores=8))
    assert load_target("zen4").cores == 8


BROKEN = {
    "not valid TOML": ("cores = 96", "cores = = 96"),
    "field cores must be a positive integer, not 'many'": ("cores = 96", "cores = 'many'"),
    "field cores must be a positive integer, not True": ("cores = 96", "cores = true"),
    "field cores must be a positive integer, not 0": ("cores = 96", "cores = 0"),
    "field vendor is missing": ('vendor = "AMD"', ""),
    "field kind must be one of cpu, gpu, accelerator, not 'tpu'": ('kind = "cpu"', 'kind = "tpu"'),
    "unknown field coers": ("cores = 96", "cores = 96\ncoers = 4"),
    "field caches\\[0\\].shared_by must be a positive integer": ("shared_by = 1,", "shared_by = -1,"),
    "field bandwidth\\[0\\].value must be a positive number": ("value = 460.8e9", "value = 0"),
    "field peaks.fp32_fma.value must be a number, not negative": ("value = 7372.8e9", "value = nan"),
    "field peaks.int8_dot.spread is missing": ("value = 29491.2e9\nspread = 0.0", "value = 29491.2e9"),
    "field caches must be a list of tables": ("caches = [", "caches = 3\nother = ["),
    "field features must be a list of texts": ('"abm",', "1,"),
}


@pytest.mark.parametrize(("message", "text"), [
    ("field levels\\[0\\].latency is missing",
     "[[levels]]\nname = 'L1'\nread = {value = 1.0, spread = 0.0, source = 'x'}\n"),
    ("field levels\\[0\\].read must be a table", "[[levels]]\nname = 'L1'\nread = 5\n")])
def test_a_broken_level_is_named_with_its_field(tmp_path, message, text):
    path = tmp_path / "broken.toml"
    path.write_text((shipped("targets") / "zen4.toml").read_text() + text)
    with pytest.raises(KforgeError, match=f"broken.toml: {message}"):
        load_target(path)


@pytest.mark.parametrize(("message", "change"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_broken_file_is_named_with_its_field(tmp_path, message, change):
    text = (shipped("targets") / "zen4.toml").read_text()
    path = tmp_path / "broken.toml"
    path.write_text(text.replace(*change, 1))
    assert path.read_text() != text
    with pytest.raises(KforgeError, match=f"broken.toml: {message}"):
        load_target(path)


def test_unknown_and_missing_targets_are_named(tmp_path):
    with pytest.raises(KforgeError, match="unknown target 'zen9': one of amd-mi250x, "):
        load_target("zen9")
    with pytest.raises(KforgeError, match="no target file"):
        load_target(tmp_path / "none.toml")


def test_a_folder_that_cannot_be_written_is_named(home):
    home.write_text("a file where the folder should be")
    with pytest.raises(KforgeError, match="cannot write the target file"):
        save_target(load_target("zen4"))


def stamp(home: Path, **changes: object) -> Target:
    """Changes the kept file, so that a later probe can be told from reading it."""
    return load_target(save_target(dataclasses.replace(host(), **changes), home / "targets/host.toml"))


def test_the_host_is_probed_once(home, no_compiler):
    facts = read_cpu()
    first = host()
    assert (first.model, first.cores, first.features) == (facts.model, facts.cores, facts.features)
    marked = stamp(home, vendor="Marked")
    assert host() == marked == load_target("host")
    assert host(refresh=True) == first == host()


@pytest.mark.parametrize("changes", [{"model": "Another"}, {"cores": 999}, {"features": ("sse",)}], ids=str)
def test_the_host_is_probed_again_when_the_machine_is_another(home, no_compiler, changes):
    stamp(home, vendor="Marked", **changes)
    assert host().vendor != "Marked"


def test_the_host_is_probed_again_when_the_compilers_change(home, no_compiler, tmp_path, monkeypatch):
    assert host().compilers == () and host().peaks == ()
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'g++ (GCC) 13.1.0' && exit\necho 'error: x' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "_library", probe._library.__wrapped__)  # as in a process that has not measured yet
    assert host(quick=True).compilers == ()  # does not look for compilers
    with pytest.raises(KforgeError, match="cannot compile"):
        host()  # a compiler has appeared, so it measures


def test_a_broken_host_file_is_replaced(home, no_compiler, caplog):
    good = host()
    (home / "targets/host.toml").write_text("cores = 'many'")
    assert host() == good and "probing again" in caplog.text
    caplog.clear()
    assert host() == good and not caplog.records


def test_a_host_that_cannot_be_kept_is_still_a_target(home, no_compiler, caplog):
    home.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        assert host().cores == read_cpu().cores
    assert "not kept" in caplog.text


def test_reading_targets_needs_neither_numpy_nor_torch():
    code = """
import sys
from kforge.targets import load_target
load_target("zen4")
assert not {"numpy", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
