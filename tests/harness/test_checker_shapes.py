"""Hypothesis drives shapes inside buckets: the two references agree there, and so do the shipped default kernels.

Examples are the same in every run; ``KFORGE_EXPLORE=1`` draws fresh ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.core.image import Image
from kforge.core.target import Target
from kforge.core.trial import Artifact, Failure, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness
from kforge.harness.cases import Case, solve
from kforge.harness.check import check_case, judge_outputs
from kforge.harness.process import Process
from kforge.operators import Distribution, Role, get

BOUNDED = settings(deadline=None, max_examples=12, derandomize="KFORGE_EXPLORE" not in os.environ, database=None,
                   suppress_health_check=list(HealthCheck))

BUCKETS = {
    "linear a8": Workload.of(Problem.of("linear", K=512, N=90, weight="q4_k", act="a8", epilogue="residual", bias=1,
                                        rows=32), M=16),
    "linear f32": Workload.of(Problem.of("linear", K=403, N=90, weight="bf16", act="f32", epilogue="silu_gate", bias=0,
                                         rows=32), M=16),
    "rms_norm": Workload.of(Problem.of("rms_norm", H=577, residual=1), T=32),
    "silu_mul": Workload.of(Problem.of("silu_mul", I=333), T=16),
    "argmax": Workload.of(Problem.of("argmax", V=1001), R=8),
    "gather_rows": Workload.of(Problem.of("gather_rows", H=65), R=16, T=66),
    "embedding": Workload.of(Problem.of("embedding", V=101, H=416, weight="q4_1", rows=16), T=16),
    "rope_kv_write": Workload.of(Problem.of("rope_kv_write", Hq=6, Hkv=2, D=64, P=16, kv="bf16", style="norm"), T=16,
                                 pages=16, positions=301),
    "qk_norm_rope_kv_write": Workload.of(Problem.of("qk_norm_rope_kv_write", Hq=6, Hkv=2, D=64, P=16, kv="bf16",
                                                    style="neox"), T=16, pages=16, positions=301),
    "moe_route": Workload.of(Problem.of("moe_route", E=20, k=4, style="all"), T=16),
    "moe_linear": Workload.of(Problem.of("moe_linear", E=5, k=2, input="token", K=96, N=80, weight="mxfp4", act="a8",
                                         epilogue="swiglu_oai", bias=1, rows=32), T=16),
    "moe_combine": Workload.of(Problem.of("moe_combine", H=83, k=4), T=16),
    "decode": Workload.of(Problem.of("paged_attention", Hq=6, Hkv=2, D=64, P=32, kv="f16"), T=4, S=4, B=17, pages=68,
                          max_context=512),
    "prefill": Workload.of(Problem.of("paged_attention", Hq=6, Hkv=2, D=64, P=32, kv="f32"), T=32, S=2, B=9, pages=18,
                           max_context=256),
    "decode, window and sinks": Workload.of(Problem.of("paged_attention", Hq=8, Hkv=1, D=64, P=32, kv="bf16",
                                                       window=128, sinks=1), T=4, S=4, B=22, pages=88, max_context=700),
    "prefill, window and sinks": Workload.of(Problem.of("paged_attention", Hq=6, Hkv=2, D=64, P=32, kv="f32",
                                                        window=20, sinks=1), T=32, S=2, B=19, pages=38,
                                             max_context=600),
}


def inside(workload: Workload, draw: st.DrawFn) -> Workload:
    """Any shape of the bucket, edges and contexts of 1 included, no larger than its tuning point."""
    axes, problem = workload.axes, workload.problem

    def number(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    if problem.operator == "paged_attention":
        decode = axes["T"] == axes["S"]
        s = number(axes["S"] // 2 + 1, axes["S"])
        t = s if decode else number(axes["T"] // 2 + 1, axes["T"])
        context = number(max(-(-t // s), axes["max_context"] // 2 + 1 if axes["max_context"] > 256 else 1),
                         axes["max_context"])
        page = problem.int("P")
        least = -(-context // page) + s - 1 + -(-(t - 1) // page)
        return Workload.of(problem, T=t, S=s, B=axes["B"], pages=number(min(least, axes["pages"]), axes["pages"]),
                           max_context=context)
    name = next(n for n in ("M", "R", "T") if n in axes)
    return Workload.of(problem, **{**axes, name: number(axes[name] // 2 + 1, axes[name])})


def a_case(workload: Workload, data: st.DataObject) -> Case:
    shape = data.draw(st.composite(lambda draw: inside(workload, draw))())
    kind = data.draw(st.sampled_from(list(Distribution)))
    return Case(shape, data.draw(st.integers(0, 1 << 30)), kind, strided=data.draw(st.booleans()))


@pytest.mark.parametrize("name", BUCKETS)
@BOUNDED
@given(data=st.data())
def test_specification_and_bound_agree_at_any_shape_of_the_bucket(name: str, data: st.DataObject) -> None:
    workload = BUCKETS[name]
    operator, case = get(workload.problem.operator), a_case(workload, data)
    if "rope_kv_write" not in workload.problem.operator:
        bucket = operator.bucket(workload.problem, workload.axes)
        assert operator.bucket(workload.problem, case.workload.axes) == bucket
    inputs = operator.inputs(case.workload, case.seed, case.distribution)
    bounds = solve(operator, case.workload, inputs, NumericsClass.RELAXED)
    written = [spec for spec in operator.tensors(case.workload) if spec.role is not Role.IN]
    found = judge_outputs(written, operator.spec(case.workload, inputs), bounds)
    assert not isinstance(found, Failure), found


@contextmanager
def default_process(harness: Harness, target: Target, workload: Workload) -> Iterator[Process]:
    kernel = default_kernel(workload.problem, target)
    artifact = build(kernel, target)
    assert isinstance(artifact, Artifact), artifact
    image = admit(artifact.data)
    assert isinstance(image, Image)
    process = harness._session(workload).start(image)
    assert isinstance(process, Process)
    try:
        yield process
    finally:
        process.close()


@pytest.mark.parametrize("name", BUCKETS)
def test_default_kernels_are_exact_at_any_shape_of_the_bucket(harness: Harness, target: Target, threads: int,
                                                              name: str) -> None:
    workload = BUCKETS[name]
    operator = get(workload.problem.operator)
    with default_process(harness, target, workload) as process:

        @BOUNDED
        @given(data=st.data())
        def holds(data: st.DataObject) -> None:
            case = a_case(workload, data)
            inputs = operator.inputs(case.workload, case.seed, case.distribution)
            answer = solve(operator, case.workload, inputs, NumericsClass.EXACT)
            found = check_case(process, operator, NumericsClass.EXACT, case, answer, threads)
            assert not isinstance(found, Failure), found

        holds()
