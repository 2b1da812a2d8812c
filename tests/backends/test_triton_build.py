"""Triton candidates built for GPUs that are not here, checked in the interpreter, and what becomes of broken ones."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kforge.backends import templates
from kforge.backends.gpu.binary import unpack
from kforge.backends.triton import installed, stand_in
from kforge.backends.verbs import of
from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir
from kforge.core.trial import Artifact, Candidate, Failure, FailureClass
from kforge.core.workload import Problem, Workload
from kforge.harness.cases import Answers, Case
from kforge.harness.check import CheckResult, check
from kforge.harness.offline import CheckedOffline, check_offline
from kforge.operators import get
from kforge.operators.base import Distribution
from kforge.targets import load_target

H200, MI300X = load_target("nvidia-h200"), load_target("amd-mi300x")
PROBLEM = Problem.of("rms_norm", H=576, residual=1)
BACKEND = of("triton")


def candidate(old: str = "", new: str = "", **params: int) -> Candidate:
    """The shipped norm, with a change."""
    template, = [t for t in templates.load("rms_norm") if t.path == "triton/rms_norm/row.py.j2"]
    made = template.render(PROBLEM, H200, {**template.defaults(PROBLEM, H200), **params})
    assert old in made.source
    return replace(made, source=made.source.replace(old, new)) if old else made


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for the whole module, which is not the user's."""
    monkeypatch.setenv("KFORGE_CACHE", str(tmp_path_factory.getbasetemp() / "triton-cache"))


def built(of_candidate: Candidate, target=H200) -> Artifact:
    found = BACKEND.build(of_candidate, target)
    assert isinstance(found, Artifact), found
    return found


def is_told(found: object, kind: FailureClass, said: str, *, detail: bool = False) -> None:
    assert isinstance(found, Failure)
    text = found.reason + found.detail if detail else found.reason
    assert (found.kind, said in text) == (kind, True), found


@pytest.mark.parametrize(("target", "kind", "warp"), [(H200, "cubin", 32), (MI300X, "hsaco", 64)],
                         ids=["nvidia", "amd"])
def test_a_template_becomes_a_binary_with_its_launches_and_a_report(target, kind: str, warp: int) -> None:
    artifact = built(candidate(), target)
    binary = unpack(artifact.data)
    entry, = binary.entries
    assert (entry.kind, entry.warp, entry.warps, binary.arch) == (kind, warp, 4, target.arch)
    assert binary.launches == artifact.launches and artifact.launches[0].groups({"T": 7}) == (7, 1, 1)
    assert [a.multiple for a in artifact.launches[0].arguments] == [16] * 7 + [1]
    resources = dict(artifact.report.resources)
    assert 8 <= resources["registers"] <= 128 and resources["spill_bytes"] == 0
    assert dict(artifact.report.instruction_mix)["load_global"] >= 3
    found = BACKEND.inspect(artifact, Workload.of(PROBLEM, T=512), target)
    assert 0 < found.occupancy <= 1 and found.seconds > 512 * 576 * 4 * 4 / target.best_bandwidth()


def test_loads_are_wide_because_addresses_and_strides_are_known_to_be_multiples() -> None:
    """Four floats at a time: a row of 576 takes 3 loads of a thread, of x, of the residual and of the weight."""
    resources = dict(unpack(built(candidate()).data).entries[0].resources)
    assert resources["loop_load_bytes"] >= 3 * 16


def test_what_was_built_is_not_built_again_and_a_damaged_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(candidate())

    def fail(*_: object) -> None:
        raise AssertionError("built again")

    with monkeypatch.context() as context:
        context.setattr("kforge.backends.triton.build._compiled", fail)
        assert built(candidate()).data == first.data
    for file in (cache_dir() / "artifacts").glob("*.gpu"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert built(candidate()).data == first.data  # and the same bytes: builds are reproducible


@pytest.mark.parametrize(("old", "new", "kind", "said"), [
    ("tl.sum(h * h, axis=0)", "tl.sum(h * h, axis=3)", FailureClass.COMPILE, "kernel.py:"),
    ("def rms_norm(", "def other(", FailureClass.COMPILE, "no @triton.jit function rms_norm"),
    ("out_stride, eps)", "out_stride, more, eps)", FailureClass.COMPILE, "9 parameters, its launch 8"),
    ("@triton.jit\n", "@triton.jit\ndef helper(x):\n    open(x)\n\n\n@triton.jit\n", FailureClass.ADMISSION, "'open'"),
    ("import triton\n", "import triton\nimport os\n", FailureClass.ADMISSION, "import os"),
    ("    t = tl", "    t == tl", FailureClass.ADMISSION, "'t' is neither"),
    ("    t = tl", "  t = tl", FailureClass.COMPILE, "indent"),
], ids=range(7))
def test_a_broken_source_is_a_failure_with_its_class(old: str, new: str, kind: FailureClass, said: str) -> None:
    is_told(BACKEND.build(candidate(old, new), H200), kind, said)


def test_more_shared_memory_than_a_group_may_have_is_told() -> None:
    assert H200.gpu is not None
    small = dataclasses.replace(H200, gpu=dataclasses.replace(H200.gpu, shared_per_block=8))
    found = BACKEND.build(candidate(), small)
    assert isinstance(found, Failure) and found.kind is FailureClass.MEMORY
    assert "rms_norm needs" in found.reason and "has 8" in found.reason


def test_a_time_limit_ends_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    from kforge.backends.gpu.compiling import BuildLimits
    from kforge.backends.triton.build import build

    larger = candidate("BLOCK = tl.constexpr(1024)", "BLOCK = tl.constexpr(2048)")
    found = build(larger, H200, BuildLimits(seconds=0.05))
    assert isinstance(found, Failure) and found.kind is FailureClass.COMPILE_LIMIT


@pytest.mark.parametrize("said", ['{"entries": []}', '{"entries": [{"warps": "many"}]}', '{"entries": 3}', "[", "{}"])
def test_an_answer_that_is_none_is_a_failure_of_the_compiler(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kforge.harness.sandbox import Outcome

    def answered(command: object, work: Path, *_: object) -> Outcome:
        (work / "answer.json").write_text(said)
        return Outcome(0, "", False)

    monkeypatch.setattr("kforge.backends.triton.build.run", answered)
    larger = candidate("BLOCK = tl.constexpr(1024)", "BLOCK = tl.constexpr(4096)")
    is_told(BACKEND.build(larger, H200), FailureClass.COMPILE, "broke down")


def test_other_targets_and_machines_without_triton_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BACKEND.cannot_build(H200) == ""
    assert "not x86_64" in BACKEND.cannot_build(load_target("zen4"))
    assert "not timed" in BACKEND.cannot_run(H200)
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in BACKEND.cannot_build(H200)
    with pytest.raises(KforgeError, match="Triton is not installed"):
        BACKEND.build(candidate(), H200)


def test_kforge_itself_never_imports_triton() -> None:
    """Not to build, check, inspect or unpack: candidates' Python runs in children alone."""
    code = ("import sys, kforge.backends.triton.backend, kforge.backends.gpu.binary, kforge.backends.gpu.cost;"
            "print('triton' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def checked(of_candidate: Candidate) -> CheckResult | Failure:
    """In the interpreter alone, without a build."""
    alone = stand_in.Interpreter(of_candidate, of_candidate.launches, H200)
    cases = [Case(Workload.of(PROBLEM, T=3), 3, Distribution.NORMAL, strided=True)]
    try:
        return check(alone, get("rms_norm"), of_candidate.numerics, cases, Answers(), 1)
    finally:
        alone.close()


def test_a_right_kernel_passes_in_the_interpreter() -> None:
    found = check_offline(BACKEND, candidate(), Workload.of(PROBLEM, T=4), H200, 3, operations=40_000)
    assert isinstance(found, CheckedOffline) and found.where == "interpreter"
    assert found.cases >= 2 and 0 < found.max_error_ratio <= 1


@pytest.mark.parametrize(("old", "new", "kind", "said"), [
    ("out + t * out_stride", "out + t * BLOCK", FailureClass.FENCE, "writes outside out"),
    ("x + t * x_stride + k, mask=inside, other=0.0", "x + t * x_stride + k", FailureClass.FENCE, "reads outside x"),
    ("tl.store(out + t * out_stride", "tl.store(x + t * x_stride", FailureClass.INPUT_MODIFIED, "its input x"),
    ("/ H + eps", "/ BLOCK + eps", FailureClass.INCORRECT, "beyond"),
    ("t = tl.program_id(0)", "t = (tl.program_id(0) // 2)", FailureClass.INCORRECT, "unwritten"),
], ids=range(5))
def test_a_wrong_kernel_is_told_what_it_did(old: str, new: str, kind: FailureClass, said: str) -> None:
    is_told(checked(candidate(old, new)), kind, said, detail=True)


def test_what_the_check_cannot_run_is_told_apart_from_what_crashes() -> None:
    """Rounding to 8 bits towards zero is not interpreted as the hardware has it: nobody knows of the kernel."""
    rounded = '((h * r) * w).to(tl.float8e5, fp_downcast_rounding="rtz").to(tl.float32)'
    found = checked(candidate("(h * r) * w", rounded))
    assert isinstance(found, Failure) and found.kind is FailureClass.COMPILE, found
    assert found.reason.startswith("the check cannot run this") and "towards zero" in found.reason
    assert "kernel.py:" in found.detail and "fp_downcast_rounding" in found.detail


def test_a_kernel_that_never_ends_is_a_timeout_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = candidate("    t = tl", "    turn = 1\n    while turn > 0:\n        turn += 1\n    t = tl")
    artifact = built(candidate())
    monkeypatch.setattr(stand_in, "_PATIENCE", 0.5)
    found = BACKEND.stand_in(endless, artifact, H200)
    assert isinstance(found, stand_in.Interpreter)
    try:
        workload = Workload.of(PROBLEM, T=1)
        inputs = get("rms_norm").inputs(workload, 1, Distribution.NORMAL)
        for _ in range(2):
            ended = found.run_once(workload, inputs, 1, 0xFF, 7, False, 1.0)
            assert isinstance(ended, Failure) and ended.kind is FailureClass.TIMEOUT, ended
    finally:
        found.close()


def test_the_child_that_compiles_reads_nothing_else(tmp_path: Path) -> None:
    from kforge.harness.sandbox import Limits, run

    work = tmp_path / "work"
    work.mkdir()
    (work / "look.py").write_text("import os\nfor place in ('/root', '/home', '/etc/passwd'):\n    try:\n"
                                  "        print(os.listdir(place) if os.path.isdir(place) else open(place).read())\n"
                                  "    except OSError as error:\n        print('kept out')\n")
    python = installed.command("build.py")[:-1]
    outcome = run([*python, "look.py"], work, Limits(20, 1 << 30, 1 << 20), installed.readable(installed.triton()))
    assert outcome.text.split("\n")[:3] == ["kept out"] * 3
