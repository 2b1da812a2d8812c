"""Kernels on an int8 KV cache through the check and its timing: defaults are exact, with one mistake they fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kforge.backends.defaults import default_kernel
from kforge.core.target import Target
from kforge.core.trial import Failure, FailureClass, NumericsClass, Trial
from kforge.core.workload import Problem, Workload
from kforge.harness import Harness

HEADS = {"Hq": 4, "Hkv": 2, "D": 32, "P": 32, "kv": "i8"}
ROPE = Workload.of(Problem.of("rope_kv_write", **HEADS, style="norm"), T=8, pages=8, positions=100)
NORMED = Workload.of(Problem.of("qk_norm_rope_kv_write", **HEADS, style="neox"), T=8, pages=8, positions=100)
DECODE = Workload.of(Problem.of("paged_attention", **HEADS), T=3, S=3, B=10, pages=30, max_context=300)
PREFILL = Workload.of(Problem.of("paged_attention", **HEADS), T=24, S=2, B=10, pages=20, max_context=300)
SLOW = pytest.mark.slow
# Of the default kernel's source: what is there once or more, and what stands there instead.
MISTAKES = {
    "integers a little too small": (ROPE, "kf::a8_inverse(amax)", "0.99f * kf::a8_inverse(amax)"),
    "the scale of the element in front": (ROPE, "amax = kf::bits(lanes[i]) > kf::bits(amax)", "amax = i < 15"),
    "NaN hidden by the largest": (ROPE, "kf::a8_scale(amax)", "amax / 127.0f < 1e38f ? amax / 127.0f : 1.0f"),
    "a scale that is not v's": (DECODE, "load(v_scale[j / 16])", "load(v_scale[0])"),
    "no scale of v": (DECODE, "mul(p, load(v_scale[j / 16]))", "p"),
    "no scale of k": (DECODE, "mul(all(scale), load(k_scale[0]))", "all(scale)"),
}


@pytest.mark.parametrize("workload", [ROPE, *(pytest.param(w, marks=SLOW) for w in (NORMED, DECODE, PREFILL))],
                         ids=lambda w: w.key)
def test_defaults_are_exact_and_timed(harness: Harness, target: Target, workload: Workload) -> None:
    trial = harness.evaluate(default_kernel(workload.problem, target), workload)
    assert isinstance(trial, Trial) and trial.failure is None and trial.timing is not None, trial


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW if w is DECODE or i else ())
                                  for i, (n, (w, *_)) in enumerate(MISTAKES.items())])
def test_a_mistake_is_beyond_the_bound(harness: Harness, target: Target, name: str) -> None:
    workload, old, new = MISTAKES[name]
    default = default_kernel(workload.problem, target)
    assert old in default.source
    wrong = replace(default, source=default.source.replace(old, new), template="test", params=(),
                    numerics=NumericsClass.RELAXED)
    found = harness.check(wrong, workload)
    assert isinstance(found, Failure) and found.kind is FailureClass.INCORRECT, found
