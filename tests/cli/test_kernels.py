"""What is kept of a kernel, for a reader: which figure counts, and in which unit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kforge.cli.kernels import app
from kforge.core.kernel import KernelRecord
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem
from kforge.registry.database import Registry

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
