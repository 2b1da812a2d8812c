"""Mixtures of experts in the harness: shipped kernels pass, wrong ones are found out by the cases that are for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kforge.backends.defaults import default_kernel
from kforge.core.target import Target
from kforge.core.trial import Failure, FailureClass
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness
from kforge.harness.check import CheckResult
from kforge.harness.session import rotation_copies
from kforge.operators import Residency, get

LINEAR = Workload.of(Problem.of("moe_linear", E=5, k=2, input="token", K=96, N=80, weight="mxfp4", act="a8",
                                epilogue="swiglu_oai", bias=1, rows=32), T=16)
ROUTE = Workload.of(Problem.of("moe_route", E=20, k=4, style="chosen"), T=16)
COMBINE = Workload.of(Problem.of("moe_combine", H=83, k=4), T=16)


@pytest.mark.parametrize("workload", [LINEAR, ROUTE, COMBINE], ids=lambda w: w.problem.operator)
def test_a_default_kernel_goes_through_the_whole_harness(harness: Harness, target: Target, workload: Workload) -> None:
    trial = harness.evaluate(default_kernel(workload.problem, target), workload)
    assert trial.failure is None and trial.timing is not None, trial.failure


WRONG = {
    "the last among equals": (ROUTE, "rank > ranks[at - 1]", "rank >= ranks[at - 1]"),
    "NaN never chosen": (ROUTE, ": INT32_MAX", ": INT32_MIN"),
    "an expert that is not chosen begins at 0": (ROUTE, "start[e] = next[e - first] = before;",
                                                 "next[e - first] = before; start[e] = count ? before : 0;"),
    "no more than 8 tokens an expert": (
        LINEAR, "const long end = token + kBlock < start[e + 1] ? token + kBlock : start[e + 1];",
        "const long end = start[e] + 8 < start[e + 1] ? start[e] + 8 : start[e + 1];"),
    "the last expert left out": (LINEAR, "e < 5 && begin < to", "e < 4 && begin < to"),
    "rows by slot": (LINEAR, "] / 2 * x_stride", "] * x_stride"),
    "bias of the first expert": (LINEAR, "+ e * tensors[4].strides[0]", "+ 0 * tensors[4].strides[0]"),
    "experts backwards": (COMBINE, "weights[j]", "weights[4 - j]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found_out(harness: Harness, target: Target, name: str) -> None:
    workload, what, to = WRONG[name]
    right = default_kernel(workload.problem, target)
    assert what in right.source
    found = harness.check(replace(right, source=right.source.replace(what, to), template="test"), workload)
    assert isinstance(found, Failure) and found.kind in (FailureClass.INCORRECT, FailureClass.INEXACT,
                                                         FailureClass.FENCE), found


def test_right_kernels_pass_the_same_checks(harness: Harness, target: Target) -> None:
    for workload in (LINEAR, ROUTE, COMBINE):
        assert isinstance(harness.check(default_kernel(workload.problem, target), workload), CheckResult)


def test_a_call_that_reads_few_of_many_experts_finds_more_copies_of_them(target: Target) -> None:
    """So that the ones that it reads have left the cache when they are read again."""
    problem = Problem.of("moe_linear", E=32, k=4, input="token", K=2880, N=5760, weight="mxfp4", act="a8",
                         epilogue="swiglu_oai", bias=1, rows=32)
    copies = []
    for tokens in (1, 512):
        specs = get("moe_linear").tensors(Workload.of(problem, T=tokens))
        copies.append(rotation_copies(specs, target.llc_bytes))
        weight = next(s for s in specs if s.residency is Residency.STREAMED)
        assert copies[-1] * weight.bytes <= (1 << 30) + weight.bytes
    assert copies[0] > copies[1] >= 1
