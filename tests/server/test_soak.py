"""``bench/soak.py``: what it takes for a leak, and two minutes of its hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from soak import Sample, grown


def test_memory_that_grows_with_every_request_is_a_leak_and_a_pool_that_fills_is_none():
    def run(resident):
        return grown([Sample(float(t), resident(t), 10, 5, 0, 50 * t) for t in range(600)])

    assert run(lambda t: (200 << 20) + min(t, 200) * (1 << 20)).holds
    leak = run(lambda t: (200 << 20) + t * 50 * 2000)
    assert not leak.holds and "2000 bytes a request" in leak.told


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_minutes_of_clients_that_misbehave(home: Path, tmp_path: Path):
    file = tmp_path / "soak.json"
    command = [sys.executable, str(ROOT / "bench" / "soak.py"), "--minutes", "2", "--asks", "80", "--json", str(file)]
    env = {**os.environ, "KFORGE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(file.read_text())
    assert all(verdict["holds"] for verdict in figures["verdicts"])
    requests = figures["requests"]
    assert min(requests[kind] for kind in ("whole", "streamed", "left", "half sent", "refused")) >= 3, requests
    assert figures["metrics"]["kforge_preemptions_total"] > 0, "the KV cache is meant to be too small"
