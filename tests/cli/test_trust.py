"""Where the sandbox lacks its minimum: commands refuse, unless told to trust, and the registry remembers that."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from test_try import AXES, SOURCE
from typer.testing import CliRunner

from kforge.cli.main import app
from kforge.core.errors import KforgeError
from kforge.core.trial import Decision, Verdict
from kforge.harness import Harness, proof

LACKS = "landlock does not hold in the build step"


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """A machine without landlock, as far as this process is told."""
    real = proof.proven()
    found = dataclasses.replace(real, build=dataclasses.replace(real.build, landlock=False))
    monkeypatch.setattr(proof, "proven", lambda: found)
    monkeypatch.setattr("kforge.harness.harness.proven", lambda: found)
    monkeypatch.setenv("KFORGE_HOME", str(home))


def invoke(monkeypatch: pytest.MonkeyPatch, *words: str):
    monkeypatch.setattr("sys.argv", ["kforge", *words])
    return CliRunner().invoke(app, list(words))


def test_tune_and_try_refuse_and_say_what_is_missing(lacking, monkeypatch, tmp_path: Path):
    (file := tmp_path / "mine.cc").write_text(SOURCE)
    for words in (("tune", "no-such-model"), ("try", str(file), "--op", "silu_mul", "--axes", AXES)):
        error = invoke(monkeypatch, *words).exception
        assert isinstance(error, KforgeError)
        assert LACKS in str(error) and "--trust-candidates" in str(error)


def test_a_trusted_candidate_is_tried(lacking, monkeypatch, tmp_path: Path):
    (file := tmp_path / "mine.cc").write_text(SOURCE)
    done = invoke(monkeypatch, "try", str(file), "--op", "silu_mul", "--axes", AXES, "--trust-candidates", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ok"]


def test_trust_is_kept_in_the_provenance_of_what_is_accepted_and_shown(lacking, monkeypatch, tmp_path: Path):
    (file := tmp_path / "mine.cc").write_text(SOURCE)

    def says_yes(harness, candidate, incumbent, workloads, **_: object) -> Verdict:
        return Verdict(Decision.ACCEPTED, candidate.hash, incumbent.hash, 0.5, 0.4, 0.6, 50, 5, 0.0)

    monkeypatch.setattr(Harness, "judge", says_yes)  # what the judge thinks is not what this is about
    words = ("try", str(file), "--op", "silu_mul", "--axes", AXES, "--submit", "--trust-candidates", "--json")
    kernel = str(json.loads(invoke(monkeypatch, *words).stdout)["submission"]["kernel"])
    shown = invoke(monkeypatch, "kernels", "show", kernel).stdout
    assert "its candidate was trusted: build: landlock did not hold in the sandbox" in shown
    history = json.loads(invoke(monkeypatch, "kernels", "show", kernel, "--json").stdout)["history"]
    assert history[0]["evidence"]["sandbox"] == {"trusted": True, "missing": ["build: landlock"]}
