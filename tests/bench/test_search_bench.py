"""``bench/search.py``: what is averaged over what, and that it skips where there is nothing to replay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from search import Done, Job, collect, load, mean_and_error, save  # noqa: E402

from kforge.tuner.strategies.recorded import read  # noqa: E402

SPACE = ROOT / "bench" / "data" / "tuning_spaces" / "convolution_milo_A4000.json.gz"


def test_without_recorded_spaces_it_says_so_and_ends_well(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "bench" / "search.py", "--spaces", tmp_path / "none"],
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "no recorded space" in done.stderr


def test_a_space_is_the_same_after_it_was_handed_to_another_process(tmp_path):
    recorded = read(SPACE)
    again = load(save(recorded, tmp_path))
    assert again.name == recorded.name and again.space.names == recorded.space.names
    assert (again.space.codes == recorded.space.codes).all()
    assert np.array_equal(again.cost, recorded.cost, equal_nan=True)


def test_seeds_are_put_together_and_a_strategy_that_lacks_a_space_is_left_out():
    a, b = Path("k_a.npz"), Path("k_b.npz")
    jobs = [Job("x", a, 0, 2), Job("x", a, 2, 3), Job("x", b, 0, 3), Job("y", a, 0, 3), Job("y", b, 0, 3)]
    results = {
        jobs[0]: Done(np.full((2, 4), 0.5), 1.0), jobs[1]: Done(np.full((1, 4), 0.8), 1.0),
        jobs[2]: Done(np.full((3, 4), 0.9), 1.0), jobs[3]: Done(np.full((3, 4), 1.0), 1.0),
    }
    figures = collect(jobs, results)
    assert list(figures) == ["x"] and figures["x"]["k_a"].shape == (3, 4)
    mean, error = mean_and_error(figures["x"], 4)
    assert mean == pytest.approx((0.7 + 0.7 + 0.85) / 3)
    assert error == pytest.approx(np.std([0.7, 0.7, 0.85], ddof=1) / 3**0.5)
