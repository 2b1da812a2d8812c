"""A kernel of one's own: what is right is timed and compared, what is wrong is said in the field's words."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from pathlib import Path

import pytest
from cli_host import host_target
from typer.testing import CliRunner

from kforge.backends.cpp.build import build
from kforge.backends.handwritten import from_file
from kforge.cli.main import app
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.core.paths import shipped
from kforge.core.trial import Artifact, Candidate, Decision, NumericsClass, Verdict
from kforge.core.workload import Problem, Workload
from kforge.operators.base import Cost
from kforge.operators.graph import Given, Graph, Kind, Op, Step
from kforge.registry.ask import open_snapshot
from kforge.registry.database import Registry
from kforge.targets.noise import Noise, NoiseClass, save_noise
from kforge.tuner.attempt import Attempt, Submission
from kforge.tuner.tune import awaiting_engine
from kforge.tuner.winners import Seconds, record_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tuner"))
from imported_operators import stored

PROBLEM = Problem.of("silu_mul", I=512)
RELU = Graph((Given("x", ("B", 64), Kind.ARGUMENT),), (Step("y", Op.RELU, ("x",), ("B", 64)),), ("y",))
RELU_SOURCE = """#include <kforge/abi.h>
extern "C" void kforge_kernel(const kf_launch *launch) {
    const float *x = static_cast<const float *>(launch->tensors[0].data);
    float *out = static_cast<float *>(launch->tensors[1].data);
    for (int64_t b = launch->thread; b < launch->axes[0]; b += launch->threads)
        for (int64_t i = 64 * b; i < 64 * b + 64; ++i) out[i] = x[i] <= 0.0f ? 0.0f : x[i];
}
"""
AXES = "I=512,T=8"
SOURCE = """#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *launch) {
    const kf_tensor &in = launch->tensors[0], &out = launch->tensors[1];
    for (int64_t t = launch->thread; t < launch->axes[0]; t += launch->threads) {
        const float *gate = static_cast<const float *>(in.data) + t * in.strides[0];
        float *to = static_cast<float *>(out.data) + t * out.strides[0];
        for (int64_t i = 0; i < 512; ++i) to[i] = kf::silu(gate[i]) * gate[512 + i];
    }
}
"""
# Everything forty times over; the barrier keeps the compiler from noticing.
SLOW = SOURCE.replace(
    "for (int64_t i", 'for (int n = 0; n < 40; ++n, ({ asm volatile("" ::: "memory"); }))\n for (int64_t i'
)


@pytest.fixture
def write(tmp_path: Path):
    def to(text: str, name: str = "mine.cc") -> Path:
        (path := tmp_path / name).write_text(text)
        return path

    return to


def test_a_right_kernel_is_timed_and_compared_with_the_default(kforge, write):
    done = kforge("try", write(SOURCE), "--op", "silu_mul", "--axes", AXES, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert document["ok"]
    assert document["template"] == "file:mine.cc"
    assert document["workload"] == "silu_mul(I=512)@T=8"
    assert document["compiler"]["text_bytes"] > 0
    assert document["timing"]["seconds"] > 0
    assert document["roofline"]["bandwidth"] > 0
    assert document["against"]["kernel"] is None
    assert document["ratio"]["lower"] <= document["ratio"]["value"] <= document["ratio"]["upper"]
    assert document["ratio"]["pairs"] >= 30


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("gate[512 + i]", "gate[511 + i]"), ("FAILED (incorrect)", "out[", "expected")),
        (("axes[0];", "axes[0] - 1;"), ("FAILED (incorrect)", "not written")),
        (("kf::silu(", "kf::sillu("), ("FAILED (compile)", "mine.cc:9", ">    9 ")),
        (("float *to", 'asm volatile("syscall"); float *to'), ("FAILED (admission)",)),
    ],
)
def test_a_wrong_kernel_fails_with_what_is_wrong(kforge, write, change, says):
    done = kforge("try", write(SOURCE.replace(*change)), "--op", "silu_mul", "--axes", AXES)
    assert done.returncode == 1, done.stdout + done.stderr
    for text in says:
        assert text in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--op", "silu_mull", "--axes", AXES), "there is no operator 'silu_mull'"),
        (("--op", "silu_mul", "--axes", "I=512"), "lacks T=..."),
        (("--op", "silu_mul", "--axes", "I=512,T=8,K=3"), "has no axis K"),
        (("--op", "silu_mul", "--axes", "I"), "is not NAME=VALUE"),
        (("--op", "silu_mul", "--axes", AXES, "--params", "unroll=4"), "has none but compiler"),
        (("--op", "silu_mul", "--axes", AXES, "--against", "feedbeef"), "is not default, tuned or a kernel's hash"),
        (("--op", "linear", "--axes", "K=64,N=64,M=1,weight=q9_9"), "q9_9"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(monkeypatch, home: Path, write, words, says):
    command = ["try", str(write(SOURCE)), *words]
    monkeypatch.setenv("KFORGE_HOME", str(home))
    monkeypatch.setattr("sys.argv", ["kforge", *command])
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, KforgeError)
    assert error.exit_code == 2
    assert says in str(error)
    assert "\n" not in str(error)


def test_a_template_for_another_operator_is_told_which_it_is_for(kforge, write):
    text = (shipped("templates") / "kernels/cpp/rms_norm/portable.cc.j2").read_text()
    done = kforge("try", write(text, "mine.j2"), "--op", "silu_mul", "--axes", AXES)
    assert done.returncode == 2
    assert "mine.j2 is a template for rms_norm (its header says so), and --op says silu_mul" in done.stderr
    assert "folder" not in done.stderr


def test_a_missing_file_and_an_unknown_kind_of_file_are_bad_input(kforge, write, tmp_path: Path):
    for file, says in ((tmp_path / "none.cc", "cannot read"), (write("x", "kernel.py"), "a kernel is C++")):
        done = kforge("try", file, "--op", "silu_mul", "--axes", AXES)
        assert (done.returncode, says in done.stderr) == (2, True)


def test_kernels_of_an_imported_operator_are_relaxed_its_axes_known_and_it_goes_to_the_judge(
    write, home: Path, monkeypatch
):
    """What is measured, and by whom it is judged, are other tests'."""
    tried: list[Workload] = []

    def attempt(candidate: Candidate, workload: Workload, rival: object, harness: object) -> Attempt:
        assert candidate.numerics is NumericsClass.RELAXED
        tried.append(workload)
        return Attempt(candidate, workload, None, None, None, Cost(0, 0, ()), unmeasured="not in this test")

    def judged(candidate: Candidate, *_: object) -> Submission:
        verdict = Verdict(Decision.ACCEPTED, candidate.hash, "d", 0.5, 0.4, 0.6, 50, 5, 0.0)
        return Submission(verdict, (("B", 4),), "the default", 7)

    monkeypatch.setenv("KFORGE_HOME", str(home))
    monkeypatch.setattr("kforge.tuner.attempt.attempt", attempt)
    monkeypatch.setattr("kforge.tuner.tune_operator.hand_in", judged)
    monkeypatch.setattr("kforge.harness.Harness", lambda *_, **__: contextlib.nullcontext())
    stored(RELU, "only_relu", 4)
    words = ["try", str(write(RELU_SOURCE)), "--op", "only_relu", "--submit"]
    monkeypatch.setattr("sys.argv", ["kforge", *words])
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0 and [w.axes for w in tried] == [{"B": 4}]
    submission = json.loads(done.stdout)["submission"]
    assert (submission["decision"], submission["kernel"], submission["state"]) == ("accepted", 7, "promoted")


@pytest.mark.slow
def test_a_kernel_of_an_imported_operator_is_timed_and_compared(kforge, write, home: Path, monkeypatch):
    monkeypatch.setenv("KFORGE_HOME", str(home))
    stored(RELU, "only_relu", 4)
    done = kforge("try", write(RELU_SOURCE), "--op", "only_relu", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert (document["numerics"], document["workload"].endswith("@B=4")) == ("relaxed", True)
    assert document["submission"] is None and document["ratio"] is not None


@pytest.mark.slow
def test_a_template_is_tried_with_parameters_and_may_include_the_shipped_parts(kforge, write):
    text = (shipped("templates") / "kernels/cpp/silu_mul/portable.cc.j2").read_text()
    file = write(text, "mine.j2")
    done = kforge(
        "try", file, "--op", "silu_mul", "--axes", AXES, "--params", "unroll=4", "--against", "default", "--json"
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert (document["template"], document["params"]["unroll"]) == ("file:mine.j2", 4)
    refused = kforge("try", file, "--op", "silu_mul", "--axes", AXES, "--params", "unroll=3")
    assert (refused.returncode, "violates the choices" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_a_submitted_kernel_that_wins_is_stored_as_accepted_and_waits_for_the_engine(
    kforge, write, home: Path, monkeypatch
):
    """The incumbent is a promoted kernel that does all work forty times."""
    target = host_target()
    workload = Workload.of(PROBLEM, T=8)
    slow = from_file(write(SLOW, "slow.cc"), PROBLEM, target, {}, NumericsClass.EXACT)
    artifact = build(slow, target)
    assert isinstance(artifact, Artifact)
    # Calibrated as a busy machine, where forty times the work still shows; never calibrated, the judge would abstain.
    monkeypatch.setenv("KFORGE_HOME", str(home))
    for threads in range(1, target.cores + 1):
        save_noise(Noise(threads, (NoiseClass(math.inf, 0.1, 1.5, 2.0),), 60, "2026-01-01"), target)
    with Registry.open(home / "registry.db") as registry:
        registry.begin_run("earlier", "toy", target.identity, home)
        verdict = Verdict(Decision.ACCEPTED, slow.hash, "d", 0.5, 0.4, 0.6, 50, 5, 0.0)
        record = record_of(slow, artifact, verdict, None, workload, target, "earlier", Seconds(1e-4, 2e-4))
        registry.set_state(
            registry.accept(record, artifact.data, slow.source, {}), KernelState.PROMOTED, "for the test"
        )

    done = kforge("try", write(SOURCE), "--op", "silu_mul", "--axes", AXES, "--submit", "--json")
    document = json.loads(done.stdout)
    assert document["against"]["candidate"] == slow.hash
    assert document["ratio"]["lower"] > 1
    assert document["submission"]["decision"] == "accepted", document["submission"]
    assert done.returncode == 0

    snapshot = open_snapshot(home / "registry.db")
    mine = next(k for k in snapshot.kernels if k.id == document["submission"]["kernel"])
    assert (mine.state, mine.proposer, mine.template) == (KernelState.ACCEPTED, "hand", "file:mine.cc")
    assert mine.gain > 0.5  # over the default: the incumbent's own gain counts
    assert [k.candidate_hash for k in snapshot.served(PROBLEM)] == [slow.hash]
    with Registry.open(home / "registry.db") as registry:
        assert [k.id for k in awaiting_engine(registry, "next", target)] == [mine.id]
        registry.set_state(mine.id, KernelState.ACCEPTED, "engine -2.0 %")
        assert awaiting_engine(registry, "next", target) == []
