"""AArch64 kernels from x86-64: built by a cross compiler, right to the bit in an emulator, kept in, and never timed."""

from __future__ import annotations

import dataclasses
import os
import platform
import signal

import pytest

pytest.importorskip("capstone")

from kforge.backends import templates
from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.backend import CppBackend
from kforge.backends.cpp.disassembly import disassemble
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.trial import Artifact, Candidate, Failure, FailureClass, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.harness import emulation
from kforge.harness.emulation import cannot_emulate, require_confined
from kforge.harness.offline import CheckedOffline, check_offline
from kforge.harness.sandbox import describe
from kforge.targets import load_target

ARM = load_target("neoverse-v2")
MISSING = "this machine is AArch64 itself" if platform.machine() == "aarch64" else cannot_emulate("aarch64")
needs_qemu = pytest.mark.skipif(bool(MISSING), reason=MISSING)
slow = pytest.mark.slow
CPP = CppBackend()


def linear(weight: str, act: str = "a8", epilogue: str = "none", k: int = 256, n: int = 80, **more: int) -> Problem:
    return Problem.of("linear", K=k, N=n, weight=weight, act=act, epilogue=epilogue, bias=more.get("bias", 0), rows=32)


def attention(kv: str) -> Problem:
    return Problem.of("paged_attention", Hq=4, Hkv=2, D=32, P=16, kv=kv, window=0, sinks=0)


SILU = Problem.of("silu_mul", I=72)
# Template, problem, axes: every integer format through dot products and matrix products, epilogues, odd sizes.
EXACT = [
    ("portable", SILU, {"T": 3}),
    ("portable", Problem.of("rms_norm", H=100, residual=1), {"T": 3}),
    ("portable", attention("f16"), {"T": 3, "S": 2, "B": 20, "pages": 48, "max_context": 300}),
    ("portable", linear("q4_1", "f32"), {"M": 3}),
    *((name, linear(weight), {"M": 11}) for name in ("a8_neon", "a8_i8mm") for weight in ("q4_0", "q8_0", "q6_k")),
    ("a8_neon", linear("q5_k", epilogue="silu_gate", n=96), {"M": 5}),
    ("a8_i8mm", linear("q4_k", epilogue="residual", bias=1, n=70), {"M": 7}),
    ("a8_i8mm", linear("mxfp4", epilogue="silu_gate", k=96, n=64), {"M": 2}),
]


def candidate_of(name: str, problem: Problem) -> Candidate:
    template = next(t for t in templates.load(problem.operator) if t.path.endswith(f"/{name}.cc.j2"))
    assert template.applies(problem, ARM) is None
    return template.render(problem, ARM, template.defaults(problem, ARM))


def checked(candidate: Candidate, workload: Workload, operations: int = 3_000_000) -> CheckedOffline | Failure:
    return check_offline(CPP, candidate, workload, ARM, seed=7, operations=operations, threads=2)


@slow
@needs_qemu
@pytest.mark.parametrize(("name", "problem", "axes"), EXACT, ids=lambda value: str(getattr(value, "key", value)))
def test_templates_are_right_to_the_bit_on_aarch64(name, problem, axes):
    found = checked(candidate_of(name, problem), Workload.of(problem, **axes))
    assert isinstance(found, CheckedOffline), found
    assert found.where == "qemu" and found.numerics is NumericsClass.EXACT and found.cases >= 2


def kernel(body: str, before: str = "") -> Candidate:
    source = (f"#include <kforge/abi.h>\n#include <kforge/math.h>\n{before}\n"
              f"void kforge_kernel(const kf_launch *launch) {{\n{body}\n}}\n")
    return Candidate(SILU, "cpp", "file:test", "0" * 16, (), source, NumericsClass.EXACT, ())


LOOP = """
    const float *in = (const float *)launch->tensors[0].data;
    float *out = (float *)launch->tensors[1].data;
    for (int64_t t = launch->thread; t < launch->axes[0]; t += launch->threads)
        for (int64_t i = 0; i < 72; ++i) {
            const float *row = in + t * launch->tensors[0].strides[0], g = row[i], u = row[72 + i];
            out[t * launch->tensors[1].strides[0] + i] = %s;
        }
"""
RIGHT = LOOP % "kf::silu(g) * u"
WRONG = {
    FailureClass.INEXACT: LOOP % "g * (1.0f / (1.0f + kf::exp(-g))) * u",
    FailureClass.INCORRECT: LOOP % "g * u",
    FailureClass.FENCE: RIGHT + "out[-16] = 1.0f;",
    FailureClass.INPUT_MODIFIED: RIGHT + "if (launch->thread == 0) *(float *)in = 1.0f;",
    FailureClass.CRASH: RIGHT + "*(volatile float *)64 = 1.0f;",
    FailureClass.TIMEOUT: RIGHT + "while (*(volatile float *)in == *(volatile float *)in) {}",
}


@slow
@needs_qemu
@pytest.mark.parametrize("kind", WRONG, ids=str)
def test_each_gate_holds_in_the_emulator(kind, monkeypatch):
    if kind is FailureClass.TIMEOUT:
        monkeypatch.setattr(emulation.EmulatedCaller, "slower", 1.0)
    found = checked(kernel(WRONG[kind]), Workload.of(SILU, T=3))
    assert isinstance(found, Failure) and found.kind is kind, found


@slow
@needs_qemu
def test_a_process_is_made_anew_after_a_failure_and_for_larger_tensors():
    artifact = CPP.build(kernel(RIGHT), ARM)
    assert isinstance(artifact, Artifact)
    caller = CPP.stand_in(kernel(RIGHT), artifact, ARM)
    assert not isinstance(caller, Failure)
    from kforge.operators import get
    from kforge.operators.base import Distribution

    operator = get("silu_mul")
    try:
        for n, tokens in enumerate((1, 40, 2)):
            workload = Workload.of(SILU, T=tokens)
            inputs = operator.inputs(workload, 1, Distribution.NORMAL)
            out = caller.run_once(workload, inputs, 2, 0xFF, 0x11, False, 5.0)
            assert not isinstance(out, Failure), out
            assert out["out"].tobytes() == operator.spec(workload, inputs)["out"].tobytes()
            if n == 1:
                os.killpg(caller._running.child.pid, signal.SIGKILL)
                found = caller.run_once(workload, inputs, 2, 0xFF, 0x11, False, 5.0)
                assert isinstance(found, Failure) and found.kind in (FailureClass.TIMEOUT, FailureClass.CRASH)
    finally:
        caller.close()


@slow
@needs_qemu
def test_what_is_built_for_aarch64_is_admitted_there_and_nowhere_else():
    artifact = CPP.build(kernel(RIGHT + "kf_barrier(launch);"), ARM)
    assert isinstance(artifact, Artifact), artifact
    assert isinstance(admit(artifact.data, "aarch64"), Image)
    refused = admit(artifact.data)  # for this machine, as an engine asks
    assert isinstance(refused, Failure) and "it is for aarch64, not x86_64" in refused.reason
    listing = disassemble(artifact.data)
    assert listing.loops and any("br x1" in line.text for line in listing.lines)
    assert artifact.report.compiler.startswith(("g++", "clang++")) and artifact.report.text_bytes > 0


@slow
@needs_qemu
def test_a_system_call_and_a_clock_are_not_admitted():
    for code, why in (('asm volatile("svc #0");', "a system call"),
                      ('asm volatile("mrs x0, cntvct_el0" ::: "x0");', "a system register"),
                      ("((void (*)())launch->scratch)();", "an indirect")):
        found = CPP.build(kernel(RIGHT + code), ARM)
        assert isinstance(found, Failure) and found.kind is FailureClass.ADMISSION and why in found.reason, found


def test_what_is_missing_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install qemu-user-static" in cannot_emulate("aarch64")
    assert "install g++-aarch64-linux-gnu" in CPP.cannot_build(ARM)
    assert "C++ kernels are for x86_64 and aarch64" in CPP.cannot_build(load_target("nvidia-h200"))
    with pytest.raises(KforgeError, match="no compiler for aarch64 is installed"):
        CPP.build(kernel(RIGHT), ARM)


def test_nothing_is_emulated_where_it_would_not_be_confined():
    facts = describe()
    held = dataclasses.replace(facts, landlock=True, seccomp=True, rlimits=True, privileges=True)
    require_confined(held)
    for name, said in (("landlock", "landlock"), ("seccomp", "seccomp"), ("rlimits", "rlimits"),
                       ("privileges", "capabilities")):
        with pytest.raises(KforgeError, match=f"cannot be confined here: {said} does not hold"):
            require_confined(dataclasses.replace(held, **{name: False}))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are x86-64")
def test_this_processor_stands_in_only_where_it_has_the_targets_instructions():
    from kforge.targets import host

    other = dataclasses.replace(host(quick=True), name="elsewhere", cores=48, features=("not_an_instruction_set",))
    artifact = CPP.build(kernel(RIGHT), dataclasses.replace(other, features=()))
    assert isinstance(artifact, Artifact)
    with pytest.raises(KforgeError, match="cannot stand in for elsewhere: it lacks not_an_instruction_set"):
        CPP.stand_in(kernel(RIGHT), artifact, other)
    found = check_offline(CPP, kernel(RIGHT), Workload.of(SILU, T=3), dataclasses.replace(other, features=()), 7,
                          operations=1_000_000, threads=2)
    assert isinstance(found, CheckedOffline) and found.where == "host"
