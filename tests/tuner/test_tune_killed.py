"""``kill -9`` at random moments of a tune: the resumed run counts every trial once and accepts only what was judged."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from kforge.models.synth import synth
from kforge.registry.snapshot import read
from kforge.tuner.journal import Event, RunFolder

KILLS = 30
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def command(home: Path, *args: str) -> subprocess.Popen:
    env = {**os.environ, "KFORGE_HOME": str(home)}
    return subprocess.Popen([sys.executable, "-m", "kforge.cli.main", *args], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def trials_of(run: Path) -> list[tuple[str, str]]:
    return [(d["trial"]["candidate_hash"], d["trial"]["workload"]) for d in
            (line.data for line in RunFolder.lines_of(run) if line.kind is Event.TRIAL)]


def test_thirty_kills_lose_and_double_nothing(tmp_path):
    model, runs, home = tmp_path / "tiny.gguf", tmp_path / "runs", tmp_path / "home"
    synth("tiny-llama-test", "q4_0", model)
    fresh = ("tune", str(model), "--budget", "25s", "--context", "64", "--prefill", "64", "--workload", "linear",
             "--retune", "--runs-dir", str(runs))
    probed = command(home, "target", "probe")  # once, before: a probe is longer than the time to a kill
    assert probed.wait(timeout=60) == 0
    noise = random.Random(20261129)
    kills, finished = 0, []
    while kills < KILLS or not finished:
        going = sorted(p for p in runs.glob("*") if p not in finished) if runs.exists() else []
        begun = [p for p in going if (p / "journal.jsonl").exists() and RunFolder.lines_of(p)]
        before = trials_of(begun[0]) if begun else []
        process = command(home, *(("tune", "--resume", str(begun[0])) if begun else fresh))
        try:
            _, errors = process.communicate(timeout=noise.uniform(0.8, 6.0) if kills < KILLS else 240)
            assert process.returncode == 0, errors
            finished += begun or sorted(runs.glob("*"))[-1:]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        if begun:
            assert trials_of(begun[0])[: len(before)] == before  # nothing measured was lost
    for run in finished:
        assert_run_is_sound(run, home)
    verified = command(home, "kernels", "verify", "--json")
    out, errors = verified.communicate(timeout=60)
    assert verified.returncode == 0, errors
    assert json.loads(out)["damaged"] == []
    assert_nothing_stays_running()


def assert_run_is_sound(run: Path, home: Path) -> None:
    lines = RunFolder.lines_of(run)
    assert lines[-1].kind is Event.FINISHED
    doubled = [key for key, n in Counter(trials_of(run)).items() if n > 1]
    assert not doubled
    judged = {(line.data["workload"].split("@")[0], line.data["verdict"]["candidate_hash"]) for line in lines
              if line.kind is Event.VERDICT and line.data["verdict"]["decision"] == "accepted"}
    stored = {(k.problem.key, k.candidate_hash) for k in read(home / "registry.db").kernels if k.run == run.name}
    assert stored <= judged


def assert_nothing_stays_running() -> None:
    """Runners die with the process that started them."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [p for p in Path("/proc").glob("[0-9]*/comm") if _reads(p) == "kforge-runner"]
        mine = [p for p in left if _parent(p.parent) == 1]
        if not mine:
            return
        time.sleep(0.2)
    raise AssertionError(f"runners without a parent: {[p.parent.name for p in mine]}")


def _reads(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _parent(process: Path) -> int:
    stat = _reads(process / "stat")
    return int(stat.rsplit(")", 1)[1].split()[1]) if stat else 0
