"""``kforge tune --agent`` with the real command: what is refused before it begins, and a whole run against a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_model_server import Answer, FakeModelServer

from kforge.models.synth import synth
from kforge.tuner.journal import Event, RunFolder

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-test-0123456789abcdef"
ANALYSIS = {"bottleneck": "dependency_chains", "evidence": "the norm", "move": "edit", "predicted_gain": 0.05,
            "change": "three or six tokens in flight", "difficulty": 1}
WRITING = {"name": "six in flight", "hypothesis": "more chains",
           "edits": [{"find": "choices = [1, 2, 4, 8]\ndefault = 4", "replace": "choices = [3, 6]\ndefault = 6"}]}


def kforge(home: Path, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    named = {name: value for name, value in os.environ.items() if "API_KEY" not in name and "BASE_URL" not in name}
    full = {**named, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env}
    command = [sys.executable, "-m", "kforge.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=full, timeout=280, check=False, cwd=home)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    synth("tiny-llama-test", "q4_0", tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize(
    ("words", "key", "says"),
    [
        (("--agent", "frob:x", "--max-tokens", "1000"), KEY, "frob is no provider"),
        (("--agent", "openai", "--max-tokens", "1000"), KEY, "openai lacks a model"),
        (("--agent", "openai:some-model"), KEY, "give --max-usd or --max-tokens"),
        (("--agent", "openai:unheard-of", "--max-usd", "1"), KEY, "no price is known for openai:unheard-of"),
        (("--agent", "openai:some-model", "--max-tokens", "1000"), "", "OPENAI_API_KEY"),
        (("--agent", "replay:nowhere"), KEY, "holds no recorded calls"),
    ],
)
def test_what_cannot_work_is_refused_before_a_run_begins(tiny: Path, tmp_path: Path, words: tuple[str, ...], key: str,
                                                         says: str) -> None:
    env = {"OPENAI_API_KEY": key} if key else {}
    done = kforge(tmp_path, "tune", tiny, *words, **env)
    lines = [line for line in done.stderr.splitlines() if line.startswith("kforge: ")]
    assert done.returncode == 2 and len(lines) == 1 and says in lines[0], done.stderr
    assert "Traceback" not in done.stderr and KEY not in done.stderr
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.slow
def test_a_model_proposes_what_is_measured_and_the_run_is_thought_again(tiny: Path, tmp_path: Path) -> None:
    steps = []
    for _ in range(4):
        steps += [Answer(calls=(("propose_next_move", json.dumps(ANALYSIS)),)),
                  Answer(calls=(("submit_template", json.dumps(WRITING)),))]
    with FakeModelServer(*steps).running() as server:
        done = kforge(tmp_path, "tune", tiny, "--agent", "openai:some-model", "--max-tokens", "400000", "--max-calls",
                      "2", "--budget", "60s", "--context", "64", "--prefill", "64", "--batch", "1", "--workload",
                      "rms_norm", OPENAI_API_KEY=KEY, OPENAI_BASE_URL=f"{server.url}/v1")
    assert done.returncode == 0, done.stderr
    assert "2 calls of models" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    lines = RunFolder.lines_of(run)
    (proposal,) = [line.data for line in lines if line.kind is Event.PROPOSAL]
    assert proposal["author"].startswith("openai/") and proposal["predicted"] == 0.05
    mine = [line.data for line in lines if line.kind is Event.TRIAL
            and line.data["trial"]["template"] == proposal["path"]]
    assert mine and all(trial["trial"]["failure"] is None for trial in mine)
    assert {dict(trial["trial"]["params"])["tokens"] for trial in mine} <= {3, 6}
    assert len(server.asked) == 2  # the third call would have been beyond --max-calls
    for file in [f for f in run.rglob("*") if f.is_file()]:
        assert KEY.encode() not in file.read_bytes()
    assert kforge(tmp_path, "runs", "report", run.name).returncode == 0
    page = (run / "report.html").read_text()
    assert KEY not in page and "six in flight" in page
    again = kforge(tmp_path, "runs", "replay", run.name)
    assert again.returncode == 0 and "2 prompts, 0 differ" in again.stdout, again.stdout + again.stderr
