"""A second language through the whole path, on this machine's OpenCL device: tuned by the same command, promoted in the
engine, looked up by another process, and used by another engine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kforge.backends.building import build
from kforge.backends.templates import load as load_templates
from kforge.core.kernel import KernelState
from kforge.core.target import Target
from kforge.core.trial import Artifact, Decision, Verdict
from kforge.core.workload import Phase
from kforge.engine.kernel_set import default_kernels
from kforge.models import load
from kforge.models.graph import CallKind, StepOptions
from kforge.models.synth import synth
from kforge.models.workloads import Mode, workloads
from kforge.registry.database import Registry
from kforge.registry.snapshot import read
from kforge.tuner.engine_pairs import EnginePairs
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.options import TuneOptions
from kforge.tuner.progress import Silent
from kforge.tuner.promotion import Promotion
from kforge.tuner.winners import Seconds, record_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODE = Mode(Phase.DECODE, 1, 1, 64)
# Other points than the defaults, so that it is these kernels which are stored, found and run.
POINTS: dict[CallKind, dict[str, int | str]] = {
    CallKind.DOWN: {"m_tile": 1, "fused": 1}, CallKind.ATTN_NORM: {"unroll": 4}, CallKind.ATTENTION: {"heads": 2},
}


@pytest.fixture(scope="module")
def target() -> Target:
    from kforge.backends.opencl.devices import devices
    from kforge.backends.targets import target_called, why_not_here

    if not devices():
        pytest.skip("no OpenCL device here: apt-get install pocl-opencl-icd ocl-icd-libopencl1")
    found = target_called("opencl")
    if why := why_not_here(found):
        pytest.skip(why)
    return found


def kforge(home: Path, *args: str) -> str:
    env = {**os.environ, "KFORGE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-m", "kforge.cli.main", *args], env=env, capture_output=True, text=True,
                          timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_same_command_tunes_every_operator_that_has_a_template(tmp_path, target):
    synth("tiny-llama-test", "q4_0", model := tmp_path / "tiny.gguf", 1)
    kforge(tmp_path / "home", "tune", str(model), "--target", "opencl", "--budget", "30s", "--batch", "1", "--context",
           "64", "--prefill", "64", "--runs-dir", str(tmp_path / "runs"))
    (run,) = (tmp_path / "runs").iterdir()
    trials = [line.data["trial"] for line in RunFolder.lines_of(run) if line.kind is Event.TRIAL]
    timed = {trial["workload"].split("(")[0] for trial in trials if trial["timing"]}
    assert timed == {"linear", "rms_norm", "paged_attention"}
    assert {trial["template"].split("/")[0] for trial in trials} == {"opencl"}
    recorded = {line.data["target"] for line in RunFolder.lines_of(run) if line.kind is Event.STARTED}
    assert recorded == {target.name}


def test_the_engine_promotes_them_and_other_processes_find_and_run_them(tmp_path, target):
    home = tmp_path / "home"
    home.mkdir()
    synth("tiny-llama-test", "q4_0", path := tmp_path / "tiny.gguf", 1)
    model = load(path)
    options = TuneOptions("tiny", batches=(1,), context=64, prefill=64, threads=min(2, target.cores))
    rows = workloads(model, (1,), (64,), 0, StepOptions(kv=options.kv, act=options.act))
    with Registry.open(home / "registry.db") as registry, RunFolder.create(tmp_path / "runs", "tiny") as folder:
        registry.begin_run(folder.id, "tiny", target.identity, folder.path)
        before, accepted = read(home / "registry.db"), []
        for kind, changed in POINTS.items():
            workload = next(row.workload for row in rows if row.kind is kind)
            (template,) = [t for t in load_templates(workload.problem.operator) if t.backend == "opencl"]
            params = {**template.defaults(workload.problem, target), **changed}
            candidate = template.render(workload.problem, target, params)
            artifact = build(candidate, target)
            assert isinstance(artifact, Artifact)
            verdict = Verdict(Decision.ACCEPTED, candidate.hash, "d", 0.02, 0.01, 0.03, 50, 5, 0.0)
            record = record_of(candidate, artifact, verdict, None, workload, target, folder.id, Seconds(1e-6, 1e-6))
            number = registry.accept(record, artifact.data, candidate.source, {})
            accepted.append(dataclasses.replace(record, id=number))
        pairs = EnginePairs(model, options, default_kernels(target), isolate=True)
        now = read(home / "registry.db")
        verdicts = Promotion(pairs, registry, folder, Silent()).promote(before, now, accepted, [MODE], lambda: False)
        assert len(verdicts) == len(POINTS) and all(v.same_tokens and v.calls > 0 for v in verdicts)
        states = {k.id: k.state for k in read(home / "registry.db").kernels}
        for number, state in states.items():  # a noisy machine may call one slower: that it is served is the point now
            if state is not KernelState.PROMOTED:
                registry.set_state(number, KernelState.PROMOTED, "for the test", {})

    for kernel in accepted:
        axes = [f"{name}={value}" for name, value in (*kernel.problem.static, *kernel.bucket)]
        answer = json.loads(kforge(home, "lookup", kernel.problem.operator, *axes, "--target", "opencl", "--json"))
        assert answer["promised"] and answer["kernel"]["hash"] == kernel.candidate_hash and answer["trace"]
        here = json.loads(kforge(home, "lookup", kernel.problem.operator, *axes, "--json"))
        assert here["kernel"] is None, "a device's kernels never serve the processor"

    said = ("generate", str(path), "-p", "one two three", "--max-tokens", "6", "--kv-tokens", "1024", "--json")
    device = json.loads(kforge(home, *said, "--target", "opencl"))
    native = json.loads(kforge(home, *said, "--kernels", "default"))
    assert device["tokens"] == native["tokens"], "exact kernels say the same tokens in any language"
    calls = {use["hash"]: use["calls"] for use in device["kernels"]}
    assert device["isolated"] and all(calls[kernel.candidate_hash] > 0 for kernel in accepted)
    assert {use["template"].split("/")[0] for use in device["kernels"]} == {"opencl", "cpp"}
