"""What is kept of a kernel, for a reader: which figure counts, and in which unit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kforge.cli.kernels import app
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem
from kforge.registry.database import Registry
from kforge.targets.files import save_target
from tests.cli.cli_host import host_target

RECORD = KernelRecord(
    "c0ffee", Problem.of("rms_norm", H=576, residual=1), (("T", 512),), "here", "host", 1, 1, NumericsClass.EXACT, (),
    "cpp", "cpp/rms_norm/portable.cc.j2", "t", (("compiler", "gcc"), ("tokens", 8)),
    hashlib.sha256(b"src").hexdigest(), hashlib.sha256(b"code").hexdigest(), "g++ 12.2.0", 0.00085, 0.00152, 0.041,
    0.028, "r1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    with Registry.open() as opened:
        opened.begin_run("r1", "model", "here", tmp_path)
        opened.accept(RECORD, b"code", "src", {})


def test_a_kernels_judged_gain_is_told_from_the_times_of_the_search():
    lines = CliRunner().invoke(app, ["show", "1"]).stdout.splitlines()
    facts = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    assert facts["gain"].startswith("+4.1 % over the default, at least +2.8 %: judged in interleaved pairs")
    assert facts["search"].startswith("850.0 us a call, the default 1520.0 us") and "only ranks" in facts["search"]
    assert facts["params"] == "compiler=gcc tokens=8"
    assert "0.00085" not in "".join(lines)


def test_in_json_the_seconds_say_whose_they_are():
    document = json.loads(CliRunner().invoke(app, ["show", "1", "--json"]).stdout)
    found = [document[name] for name in ("gain", "search_seconds", "search_default_seconds")]
    assert found == [0.041, 0.00085, 0.00152]


def test_only_a_kernel_of_this_machine_that_waits_for_the_engine_is_promoted(tmp_path: Path):
    save_target(host_target(), tmp_path / "targets" / "host.toml")
    told = CliRunner().invoke(app, ["promote", "1", "--model", "none.gguf", "--runs-dir", str(tmp_path / "runs")])
    assert isinstance(told.exception, KforgeError)
    assert str(told.exception) == "kernel 1: it was judged on host, and only this machine's engine can be run"
    here = dataclasses.replace(RECORD, target_identity=host_target().identity, candidate_hash="decade")
    with Registry.open() as opened:
        opened.set_state(opened.accept(here, b"code", "src", {}), KernelState.PROMOTED, "for the test")
    told = CliRunner().invoke(app, ["promote", "decade", "--model", "none.gguf"])
    assert str(told.exception) == "kernel 2: it is promoted; only accepted ones wait for the engine"
    assert not (tmp_path / "runs").exists()
