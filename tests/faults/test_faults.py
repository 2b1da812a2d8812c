"""A sample of the fault runs: three seeds of every fault. All of them: ``python -m tests.faults --seeds 0:300``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.scenario import VARIANTS, Action, Fault, Scenario
from tests.faults.watch import ROOT

SEEDS = 21


def test_every_fault_meets_every_command_that_it_can_in_300_seeds():
    drawn = [Scenario.of(seed) for seed in range(300)]
    assert {(s.action, s.fault) for s in drawn if s.fault is not Fault.JOURNAL} == {
        (a, f) for a in Action for f in Fault if f is not Fault.JOURNAL
    }
    assert {(s.fault, s.variant) for s in drawn} == {(f, v) for f in Fault for v in VARIANTS[f]}
    assert len({str(s).partition(":")[2] for s in drawn}) == 300


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_faults_at_random_points_lose_nothing_and_leave_nothing(tmp_path: Path):
    command = [sys.executable, "-m", "tests.faults", "--seeds", f"0:{SEEDS}", "--json", str(tmp_path / "faults.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    played = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert {p["seed"] for p in played} == set(range(SEEDS))
    assert {p["fault"] for p in played if p["hit"]} == {f.value for f in Fault}
