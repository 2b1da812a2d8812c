"""A second language through the whole path, on this machine's OpenCL device: tuned by the same command, promoted in the
engine, looked up by another process, and used by another engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kforge.core.kernel import KernelState
from kforge.models.synth import synth
from kforge.registry.snapshot import read
from kforge.tuner.journal import Event, RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OPERATORS = ("linear", "rms_norm", "paged_attention")


def kforge(home: Path, *args: str) -> str:
    env = {**os.environ, "KFORGE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-m", "kforge.cli.main", *args], env=env, capture_output=True, text=True,
                          timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Home, model and run folder of one tune."""
    from kforge.backends.opencl.devices import devices

    if not devices():
        pytest.skip("no OpenCL device here: apt-get install pocl-opencl-icd ocl-icd-libopencl1")
    base = tmp_path_factory.mktemp("opencl")
    home, model, runs = base / "home", base / "tiny.gguf", base / "runs"
    synth("tiny-llama-test", "q4_0", model)
    kforge(home, "tune", str(model), "--target", "opencl", "--budget", "60s", "--batch", "1", "--context", "64",
           "--prefill", "64", "--runs-dir", str(runs))
    (run,) = runs.iterdir()
    return home, model, run


def test_every_operator_with_a_template_was_tuned_and_the_others_say_why_not(tuned):
    _, _, run = tuned
    lines = RunFolder.lines_of(run)
    timed = {line.data["trial"]["workload"].split("(")[0] for line in lines
             if line.kind is Event.TRIAL and line.data["trial"]["timing"]}
    assert timed == set(OPERATORS)
    assert {line.data["trial"]["template"].split("/")[0] for line in lines if line.kind is Event.TRIAL} == {"opencl"}
    settled = {line.data["task"].split("(")[0] for line in lines if line.kind is Event.SETTLED}
    assert settled == set(OPERATORS)


def test_what_the_engine_promoted_another_process_finds_and_runs(tuned):
    home, model, run = tuned
    promoted = [k for k in read(home / "registry.db").kernels if k.state is KernelState.PROMOTED]
    assert promoted, "on this model the default of linear computes four tokens where one is wanted"
    assert all(k.backend == "opencl" and k.run == run.name for k in promoted)
    kernel = next(k for k in promoted if k.problem.operator == "linear")
    axes = [f"{name}={value}" for name, value in (*kernel.problem.static, *kernel.bucket)]
    answer = json.loads(kforge(home, "lookup", "linear", *axes, "--target", "opencl", "--json"))
    assert answer["promised"] and answer["kernel"]["hash"] == kernel.candidate_hash and answer["trace"]
    here = json.loads(kforge(home, "lookup", "linear", *axes, "--json"))
    assert here["kernel"] is None, "a device's kernels never serve the processor"

    said = ("generate", str(model), "-p", "one two three", "--max-tokens", "8", "--json")
    device = json.loads(kforge(home, *said, "--target", "opencl"))
    native = json.loads(kforge(home, *said, "--kernels", "default"))
    assert device["tokens"] == native["tokens"], "exact kernels say the same tokens in any language"
    used = {use["hash"]: use for use in device["kernels"]}
    assert used[kernel.candidate_hash]["calls"] > 0 and device["isolated"]
    languages = {use["template"].split("/")[0] for use in device["kernels"]}
    assert languages == {"opencl", "cpp"}, "the processor's kernels serve the rest, on the same memory"
