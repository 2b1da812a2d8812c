"""Where whole outputs cannot be held against a reference, rows drawn at random are; and any number of rows is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness_kernels import PROBLEM, candidate, changed

from kforge.backends.defaults import default_kernel
from kforge.core.target import Target
from kforge.core.trial import Failure, FailureClass, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness, cases
from kforge.harness.cases import solve
from kforge.harness.check import judge_outputs
from kforge.harness.held_out import HeldOut
from kforge.harness.row_counts import plan_rows
from kforge.operators import Distribution, Role, get
from kforge.targets import host

WORKLOADS = [
    Workload.of(PROBLEM, M=40),
    Workload.of(Problem.of("linear", K=512, N=90, weight="q4_k", act="a8", epilogue="residual", bias=1, rows=32), M=9),
    Workload.of(Problem.of("rms_norm", H=57, residual=1), T=9),
    Workload.of(Problem.of("silu_mul", I=33), T=9),
    Workload.of(Problem.of("argmax", V=101), R=9),
    Workload.of(Problem.of("gather_rows", H=65), R=9, T=30),
    Workload.of(Problem.of("embedding", V=101, H=64, weight="q4_1", rows=16), T=9),
    Workload.of(Problem.of("moe_combine", H=33, k=3), T=9),
    Workload.of(Problem.of("moe_linear", E=5, k=2, input="token", K=96, N=40, weight="mxfp4", act="a8",
                           epilogue="none", bias=1, rows=16), T=9),
    Workload.of(Problem.of("paged_attention", Hq=6, Hkv=2, D=64, P=32, kv="f16"), T=20, S=3, B=20, pages=40,
                max_context=601),
]
WINDOWED = Workload.of(Problem.of("paged_attention", Hq=6, Hkv=2, D=64, P=32, kv="f16", window=100, sinks=1), T=20, S=3,
                       B=20, pages=40, max_context=601)


@pytest.fixture(scope="module")
def target() -> Target:
    return host()


@pytest.fixture
def harness(target: Target) -> Iterator[Harness]:
    with Harness(target, 2) as made:
        yield made


def written(workload: Workload) -> list:
    return [s for s in get(workload.problem.operator).tensors(workload) if s.role is not Role.IN]


@pytest.mark.parametrize("workload", [*WORKLOADS, WINDOWED], ids=lambda w: w.problem.operator)
@pytest.mark.parametrize("distribution", [Distribution.MIXED, Distribution.ROWS])
def test_a_part_leaves_what_stands_in_the_rows_of_the_whole(workload: Workload, distribution: Distribution) -> None:
    operator = get(workload.problem.operator)
    inputs = operator.inputs(workload, 3, distribution)
    whole, rows = operator.spec(workload, inputs), np.array([0, 3, 5, 8])
    part = operator.part(workload, inputs, rows)
    assert part is not None
    assert [s.shape for s in written(part.workload)] == [(len(rows), *s.shape[1:]) for s in written(workload)]
    for name, values in operator.spec(part.workload, part.inputs).items():
        assert np.array_equal(values, whole[name][rows], equal_nan=True)
    bounds = operator.reference(part.workload, part.inputs)
    for spec in written(workload):
        wanted = operator.reference(workload, inputs)[spec.name]
        assert np.allclose(bounds[spec.name].reference, wanted.reference[rows], rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize("numerics", NumericsClass)
@pytest.mark.parametrize("workload", [WORKLOADS[0], WORKLOADS[-1]], ids=lambda w: w.problem.operator)
def test_outputs_too_large_for_a_reference_are_checked_in_rows(monkeypatch: pytest.MonkeyPatch, workload: Workload,
                                                               numerics: NumericsClass) -> None:
    operator = get(workload.problem.operator)
    inputs = operator.inputs(workload, 3, Distribution.NORMAL)
    right = operator.spec(workload, inputs)
    for name in ("SPEC_OPERATIONS", "REFERENCE_OPERATIONS"):
        monkeypatch.setattr(cases, name, 1)
    monkeypatch.setattr(cases, "_SAMPLE_OPERATIONS", cases.operations(operator, workload) // 10)
    answer = solve(operator, workload, inputs, numerics)
    assert not isinstance(judge_outputs(written(workload), right, answer), Failure)
    for wrong in (0.0, 1.0 + 1e-3):
        assert isinstance(judge_outputs(written(workload), {"out": right["out"] * np.float32(wrong)}, answer), Failure)


def test_an_exact_kernel_is_held_against_bits_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, workload = get("linear"), WORKLOADS[0]
    inputs = operator.inputs(workload, 3, Distribution.NORMAL)
    out = operator.spec(workload, inputs)["out"]
    monkeypatch.setattr(cases, "SPEC_OPERATIONS", 1)
    answer = solve(operator, workload, inputs, NumericsClass.EXACT)
    near = {"out": np.nextafter(out, np.float32(np.inf))}
    found = judge_outputs(written(workload), near, answer)
    assert isinstance(found, Failure) and found.kind is FailureClass.INEXACT


@pytest.mark.parametrize("workload", [w for w in WORKLOADS if get(w.problem.operator).row_axis],
                         ids=lambda w: w.problem.operator)
def test_one_row_is_tried_with_every_distribution(workload: Workload) -> None:
    operator = get(workload.problem.operator)
    axis = operator.row_axis
    one = Workload(workload.problem, tuple(sorted({**workload.axes, axis: 1}.items())))
    plan = plan_rows(operator, one, 5)
    assert plan.counts.tolist() == [1] and plan.whole.axes[axis] >= len(Distribution) - 1


def test_a_number_of_rows_that_is_wrong_is_found_before_acceptance(harness: Harness) -> None:
    last_row = "out[m * os + n] = (M % 16 == 13 && m == M - 1) ? 0.5f * acc : acc;"
    workload = Workload.of(PROBLEM, M=64)
    found = harness.check_held_out(changed("out[m * os + n] = acc;", last_row), workload)
    assert isinstance(found, Failure) and found.kind is FailureClass.INCORRECT
    right = harness.check_held_out(candidate(), workload)
    assert isinstance(right, HeldOut) and right.row_counts >= 32


def test_one_rounding_that_is_left_out_shows_in_a_bucket_of_single_rows(target: Target) -> None:
    """It shows in about one row of forty: in 15 rows two of three such kernels would pass."""
    source = (Path(__file__).parents[1] / "zoo" / "honest" / "plain_rms_norm.cc").read_text().replace("104", "576")
    wrong = source.replace("kf::fma(x[i * xs + k], x[i * xs + k], lanes[k % 16])",
                           "x[i * xs + k] * x[i * xs + k] + lanes[k % 16]")
    problem = Problem.of("rms_norm", H=576, residual=0)
    made = [replace(default_kernel(problem, target), source=text, template="test") for text in (source, wrong)]
    found = []
    for seed in range(8):
        with Harness(target, 2, seed=1000 * seed) as harness:
            right, less = (harness.check(candidate, Workload.of(problem, T=1)) for candidate in made)
        assert not isinstance(right, Failure)
        found.append(isinstance(less, Failure) and less.kind is FailureClass.INEXACT)
    assert sum(found) >= 6
