"""OpenCL for real, where this machine has a device: built, checked, timed, confined."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pytest
from opencl_here import opencl_target

from kforge.backends.building import admit, build, launches
from kforge.backends.templates import load
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure, FailureClass
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness
from kforge.harness.proof import Layer
from kforge.harness.zygote import Zygote

pytestmark = pytest.mark.slow

LINEAR = {"K": 96, "N": 80, "act": "a8", "rows": 32}
WORKLOADS = [
    Workload.of(Problem.of("rms_norm", H=100, residual=1), T=5),
    Workload.of(Problem.of("linear", weight="q4_1", epilogue="residual", bias=1, **LINEAR), M=3),
    Workload.of(Problem.of("linear", weight="q8_0", epilogue="silu_gate", bias=0, **LINEAR), M=9),
    Workload.of(Problem.of("linear", weight="q4_0", epilogue="none", bias=0, **LINEAR), M=1),
    Workload.of(Problem.of("paged_attention", Hq=4, Hkv=2, D=32, P=64, kv="f16"), T=2, S=2, B=8, pages=32,
                max_context=512),
    Workload.of(Problem.of("paged_attention", Hq=3, Hkv=3, D=48, P=64, kv="bf16"), T=8, S=2, B=4, pages=16,
                max_context=256),
]


@pytest.fixture(scope="module")
def target() -> Target:
    return opencl_target()


@pytest.fixture(scope="module")
def harness(target: Target) -> Iterator[Harness]:
    with Harness(target, min(2, len(os.sched_getaffinity(0)))) as made:
        yield made


def candidate(problem: Problem, target: Target, **changed: int | str) -> Candidate:
    (template,) = [t for t in load(problem.operator) if t.backend == "opencl"]
    return template.render(problem, target, {**template.defaults(problem, target), **changed})


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.key)
def test_a_kernel_in_opencl_is_exact_to_the_bit(harness, target, workload):
    """Over the bucket's shapes, strides, hostile values and poisons that every native kernel is checked with."""
    trial = harness.evaluate(candidate(workload.problem, target), workload)
    assert trial.failure is None and trial.timing is not None and trial.timing.seconds > 0


@pytest.mark.parametrize("changed", [{"fused": 1, "arithmetic": "int"}, {"m_tile": 1, "r_blocks": 4, "group": 2}],
                         ids=str)
def test_other_points_are_exact_too(harness, target, changed):
    workload = WORKLOADS[1]
    made = candidate(workload.problem, target, **changed)
    assert not isinstance(harness.check(made, workload), Failure)


def test_an_artifact_tells_how_it_is_launched(target):
    made = candidate(WORKLOADS[0].problem, target)
    built = build(made, target)
    assert isinstance(built, Artifact)
    assert launches("opencl", built.data) == made.launches == built.launches
    assert not isinstance(admit("opencl", built.data, target), Failure)


def edited(made: Candidate, old: str, new: str) -> Candidate:
    assert old in made.source
    return dataclasses.replace(made, source=made.source.replace(old, new))


@pytest.mark.parametrize(("old", "new", "kinds"), [
    ("const int T, const float eps) {", "const int T, const float eps) { this is wrong", {FailureClass.COMPILE}),
    # Wrong by a little: a sum that does not start at zero.
    ("float16 sum0 = 0.0f;", "float16 sum0 = 1e-3f;", {FailureClass.INCORRECT, FailureClass.INEXACT}),
    ("long t = ", "weight = 0; long t = ", {FailureClass.CRASH, FailureClass.FENCE}),
    ("long t = ", "((__global float *)weight)[0] = 0.0f; long t = ", {FailureClass.INPUT_MODIFIED}),
    ("long t = ", "out[T * out_stride + 8] = 0.0f; long t = ", {FailureClass.FENCE}),
    ("long t = ", "for (volatile int i = 0; i >= 0; i = 1) ; long t = ", {FailureClass.TIMEOUT}),
    ("long t = ", 'asm volatile("syscall" ::"a"(39L) : "rcx", "r11", "memory"); long t = ',
     {FailureClass.ADMISSION, FailureClass.COMPILE}),
    ("long t = ", 'printf("out\\n"); long t = ', {FailureClass.ADMISSION, FailureClass.COMPILE}),
])
def test_what_is_wrong_costs_a_trial_and_is_named(harness, target, old, new, kinds):
    made = edited(candidate(WORKLOADS[0].problem, target), old, new)
    found = harness.check(made, WORKLOADS[0])
    assert isinstance(found, Failure) and found.kind in kinds, found


def test_a_constructor_does_not_run_before_the_process_is_locked_down(harness, target):
    """It is refused, or left out by the compiler: one that ran would never end, and the child would not start."""
    early = "__attribute__((constructor)) void early(void) { for (volatile int i = 0; i >= 0; i = 1) ; }\n"
    made = edited(candidate(WORKLOADS[0].problem, target), "__attribute__((reqd", early + "__attribute__((reqd")
    found = harness.check(made, WORKLOADS[0])
    assert not isinstance(found, Failure) or found.kind in {FailureClass.ADMISSION, FailureClass.COMPILE}, found


def test_nothing_gets_out_of_a_process_that_is_locked_down_for_opencl():
    opencl_target()
    with Zygote.empty(4096, "opencl") as zygote:
        first = zygote.attempt(0, [0])
        assert first.survived, "a child that only yields must live"
        layers = zygote.attempt(1, [0])
        assert Layer(layers.result) >= Layer.FILES | Layer.LIMITS | Layer.LANDLOCK
        for number in range(2, first.attempts):
            ending = zygote.attempt(number, [0])
            assert ending.forbidden, f"{ending.name}: {ending.status}"
