"""Linear kernels give the order specification's bits, whatever the template, format, epilogue, M and thread count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from linear_running import FEATURES, assert_exact, compiled, problem_of, target_of, template_of

from kforge import operators
from kforge.core.dtypes import WeightFormat
from kforge.core.workload import Problem, Workload
from kforge.native import Arena, Program, Team
from kforge.operators import layouts
from kforge.operators.base import Distribution


def act_of(template: str) -> str:
    """Activations that a template is for; nothing for one that takes all."""
    return template.rpartition("_")[0]


@dataclass(frozen=True)
class Case:
    template: str
    weight: str
    K: int
    N: int
    rows: int
    epilogue: str = "none"
    bias: int = 0
    act: str = ""  # of templates for several

    @property
    def problem(self) -> Problem:
        act = self.act or act_of(self.template) or WeightFormat(self.weight).acts[0]
        return problem_of(self.weight, self.K, self.N, self.rows, self.epilogue, self.bias, act)


WEIGHT_OF = {"a8_token": "int8_channel", "bf16_dot": "bf16"}
# Each format, epilogue and panel height, ragged N and K.
CASES = [
    Case("a8_vnni", "q4_0", 96, 100, 32),
    Case("a8_vnni", "q4_1", 64, 88, 64, "silu_gate", 1),
    Case("a8_vnni", "q6_k", 256, 50, 16, "residual"),
    Case("a8_vnni", "mxfp4", 96, 100, 16, "none", 1),
    Case("f32_avx512", "bf16", 330, 70, 32, "residual", 1),
    Case("bf16_dot_avx512", "bf16", 330, 70, 32, "residual", 1),
    Case("bf16_dot_avx512", "bf16", 67, 72, 64, "silu_gate"),
    Case("portable", "bf16", 75, 50, 16, "residual", 1, "bf16_dot"),
    Case("f32_avx512", "q5_k", 512, 72, 32, "silu_gate"),
    Case("a8_avx2", "q8_0", 96, 60, 32, "silu_gate", 1),
    Case("a8_avx2", "q6_k", 256, 50, 16),
    Case("a8_avx2", "mxfp4", 96, 50, 32),
    Case("f32_avx2", "f16", 200, 40, 32, "silu_gate"),
    Case("a8_token_vnni", "int8_channel", 96, 100, 32),
    Case("a8_token_vnni", "int8_channel", 64, 88, 64, "silu_gate", 1),
    Case("a8_token_avx2", "int8_channel", 96, 60, 32, "silu_gate", 1),
    Case("f32_avx512", "int8_channel", 160, 50, 16, "residual"),
    Case("portable", "int8_channel", 96, 50, 16, "residual", 1),
    Case("portable", "q4_k", 256, 40, 32, "residual", 1),
    Case("portable", "f32", 150, 40, 64, "silu_gate"),
]


def skip_unless_it_runs_here(name: str, problem: Problem) -> None:
    if reason := template_of(name).applies(problem, target_of(name)):
        pytest.skip(reason)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.template}-{case.weight}-{case.epilogue}")
def test_bits_equal_the_order_specification_for_any_tokens_and_threads(case: Case) -> None:
    problem = case.problem
    skip_unless_it_runs_here(case.template, problem)
    kernel = compiled(case.template, problem)
    for tokens, threads, distribution in [(1, 2, Distribution.NORMAL), (1, 1, Distribution.TINY),
                                          (5, 3, Distribution.HEAVY_TAIL), (37, 2, Distribution.CANCEL),
                                          (67, 2, Distribution.NORMAL)]:
        assert_exact(kernel, problem, tokens, threads, distribution)


def test_sums_around_the_least_normal_value_are_flushed_as_the_specification_says() -> None:
    """Weights and activations that meet at 2^-126: denormal operands, results just below, at and above it."""
    for name in ("bf16_dot_avx512", "portable"):
        problem = problem_of("bf16", 64, 32, 32, "none", 0, "bf16_dot")
        if template_of(name).applies(problem, target_of(name)):
            continue  # portable is never left out
        kernel, rng = compiled(name, problem), np.random.default_rng(7)
        stored = layouts.random(WeightFormat.BF16, 32, 64, 1)
        powers = rng.choice([0, 25, 26, 27, 28], (32, 64)).astype(np.uint16)  # denormal, or 2^-102 to 2^-99
        values = (powers << 7 | rng.integers(0, 2, powers.shape) * rng.integers(0, 128, powers.shape)
                  | rng.integers(0, 2, powers.shape) << 15).astype(np.uint16)
        weight = layouts.pack(replace(stored, values=values), layouts.panel_layout(32))
        x = np.ldexp(rng.choice([-1.5, -1, 1, 1.25], (9, 64)), rng.choice([-130, -50, -28, -26, -25, -24], (9, 64)))
        x = (x * (rng.random((9, 64)) < 0.1)).astype(np.float32)  # few terms: some sums stay below 2^-126
        operator, workload = operators.get("linear"), Workload.of(problem, M=9)
        wanted = operator.spec(workload, {"x": x, "w": weight})["out"]
        arena = Arena(1 << 20)
        tensors = [arena.take(v.shape, v.dtype.type) for v in (x, weight, wanted)]
        tensors[0][...], tensors[1][...] = x, weight
        with Program(Team(2)) as program:
            program.add(kernel, tensors, np.array([9], np.int64), np.array([], np.float64))
            program.run()
        assert np.array_equal(tensors[2].view(np.uint32), wanted.view(np.uint32)), name
        assert (wanted == 0).any() and (np.abs(wanted[wanted != 0]) >= 2.0**-126).all() and (wanted != 0).any()


def test_every_format_and_activation_has_a_template_on_any_processor() -> None:
    template, target = template_of("portable"), target_of("portable")
    for weight in WeightFormat:
        for act in weight.acts:
            problem = problem_of(weight, 256, 64, 32, "none", 0, act)
            assert template.applies(problem, target) is None, (weight, act)


def test_scratch_never_shrinks_with_more_tokens() -> None:
    problem = problem_of("q4_0", 64, 32, 32, "none", 0, "a8")
    name = "a8_vnni" if template_of("a8_vnni").applies(problem, target_of("a8_vnni")) is None else "portable"
    kernel = compiled(name, problem)
    for threads in (1, 2, 64):
        sizes = [kernel.scratch_bytes(np.array([m], np.int64), threads) for m in range(1, 100)]
        assert sizes == sorted(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("weight", list(WeightFormat))
@pytest.mark.parametrize("name", list(FEATURES))
def test_bits_of_every_format(name: str, weight: WeightFormat) -> None:
    for act in weight.acts:
        if name != "portable" and act_of(name) != act:
            continue
        for epilogue, bias, rows, N in [("residual", 1, 64, 70), ("silu_gate", 0, 32, 72)]:
            problem = problem_of(weight, 512, N, rows, epilogue, bias, act)
            skip_unless_it_runs_here(name, problem)
            kernel = compiled(name, problem)
            for tokens, threads in [(1, 2), (2, 1), (7, 3), (16, 2), (33, 1), (70, 2)]:
                assert_exact(kernel, problem, tokens, threads, Distribution.NORMAL)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FEATURES if name != "portable"])
def test_bits_do_not_depend_on_parameters(name: str) -> None:
    template, target = template_of(name), target_of(name)
    act = act_of(name)
    problem = problem_of(WEIGHT_OF.get(act, "q4_0"), 160, 96, 32, "silu_gate", 0, act)
    skip_unless_it_runs_here(name, problem)
    space = template.space(problem, target)
    for params in space[:: max(1, len(space) // 6)]:
        kernel = compiled(name, problem, **params)
        for tokens in (1, 6, 53):
            assert_exact(kernel, problem, tokens, 2, Distribution.HEAVY_TAIL)
