"""Kernels for mixtures of experts equal their order specifications to the bit, however tokens fall on experts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from kernel_running import ISAS, assert_exact, compiled, run, target_of, template_of

from kforge import operators
from kforge.core.workload import Problem, Workload
from kforge.operators.base import Distribution
from kforge.operators.experts import grouped

ISA_OF = {"a8_vnni": "host", "f32_avx512": "host", "a8_avx2": "avx2", "f32_avx2": "avx2", "portable": "plain",
          "a8_token_vnni": "host", "a8_token_avx2": "avx2", "bf16_dot_avx512": "host"}
WEIGHT_OF = {"a8_token": "int8_channel", "bf16_dot": "bf16"}


def experts_problem(weight: str, act: str, epilogue: str, source: str, *, bias: int = 1, rows: int = 32, e: int = 6,
                    top: int = 3, width: int = 96, n: int = 88) -> Problem:
    return Problem.of("moe_linear", E=e, k=top, input=source, K=width, N=n, weight=weight, act=act, epilogue=epilogue,
                      bias=bias, rows=rows)


GPT_OSS = experts_problem("mxfp4", "a8", "swiglu_oai", "token")
CASES = [("a8_vnni", GPT_OSS), ("a8_vnni", experts_problem("mxfp4", "a8", "none", "slot", rows=16, n=50)),
         ("f32_avx512", experts_problem("bf16", "f32", "swiglu_oai", "token", bias=0, width=75)),
         ("a8_avx2", GPT_OSS), ("portable", experts_problem("mxfp4", "a8", "silu_gate", "token", rows=64))]
MORE = [("a8_vnni", experts_problem("q6_k", "a8", "silu_gate", "slot", bias=0, rows=64, width=256)),
        ("f32_avx512", experts_problem("mxfp4", "f32", "none", "slot")),
        ("f32_avx2", experts_problem("mxfp4", "f32", "swiglu_oai", "token")),
        ("f32_avx2", experts_problem("f16", "f32", "none", "slot", width=75)),
        ("portable", experts_problem("bf16", "f32", "swiglu_oai", "slot", width=75)),
        ("bf16_dot_avx512", experts_problem("bf16", "bf16_dot", "swiglu_oai", "token", width=75)),
        ("portable", experts_problem("bf16", "bf16_dot", "silu_gate", "slot", width=75)),
        ("a8_avx2", experts_problem("q8_0", "a8", "silu_gate", "token")),
        ("a8_token_vnni", experts_problem("int8_channel", "a8_token", "silu_gate", "token")),
        ("a8_token_avx2", experts_problem("int8_channel", "a8_token", "none", "slot", rows=16)),
        ("portable", experts_problem("int8_channel", "a8_token", "silu_gate", "slot"))]
ALL = [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]


def quickest(problem: Problem) -> str:
    """The template for integer weights that asks most of this machine."""
    names = ("a8_vnni", "a8_avx2", "portable")
    return next(n for n in names if template_of("moe_linear", n).applies(problem, target_of(ISA_OF[n])) is None)


def skip_unless_it_runs_here(name: str, problem: Problem) -> None:
    if reason := template_of("moe_linear", name).applies(problem, target_of(ISA_OF[name])):
        pytest.skip(reason)


@pytest.mark.parametrize(("name", "problem"), ALL, ids=lambda x: x if isinstance(x, str) else x.str("weight"))
def test_experts_products_are_exact_for_any_tokens_and_threads(name: str, problem: Problem) -> None:
    skip_unless_it_runs_here(name, problem)
    kernel = compiled(problem, name, ISA_OF[name])
    for tokens, threads, distribution in ((1, 1, Distribution.NORMAL), (1, 3, Distribution.LARGE),
                                          (5, 2, Distribution.ROWS), (41, 2, Distribution.MIXED),
                                          (90, 3, Distribution.NAN)):
        assert_exact(kernel, Workload.of(problem, T=tokens), threads, distribution)


def chosen(ids: np.ndarray, problem: Problem) -> Mapping[str, np.ndarray]:
    """Inputs whose tokens have these experts."""
    workload = Workload.of(problem, T=len(ids))
    slots = grouped(ids.astype(np.int32), problem.int("E"))
    made = operators.get("moe_linear").inputs(workload, 5, Distribution.NORMAL)
    return {**made, "order": slots.order, "expert_start": slots.start}


@pytest.mark.parametrize("threads", [1, 3])
def test_extreme_choices_of_experts_are_exact(threads: int) -> None:
    """All tokens to one, more of them than a block of activations holds; only the first and the last; one each."""
    problem = experts_problem("mxfp4", "a8", "swiglu_oai", "token", top=1)
    name = quickest(problem)
    kernel = compiled(problem, name, ISA_OF[name])
    for ids in (np.full((230, 1), 4), np.repeat([0, 5], 9)[:, None], np.arange(6)[::-1, None], np.array([[5]])):
        assert_exact(kernel, Workload.of(problem, T=len(ids)), threads, inputs=chosen(ids, problem))


def test_scratch_never_shrinks_with_more_tokens() -> None:
    name = quickest(GPT_OSS)
    kernel = compiled(GPT_OSS, name, ISA_OF[name])
    for threads in (1, 2, 64):
        sizes = [kernel.scratch_bytes(np.array([t], np.int64), threads) for t in range(1, 120)]
        assert sizes == sorted(sizes) and sizes[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ISA_OF if name != "portable"])
def test_bits_do_not_depend_on_parameters(name: str) -> None:
    act = name.rpartition("_")[0]
    problem = experts_problem(WEIGHT_OF.get(act, "mxfp4"), act, "swiglu_oai", "token")
    skip_unless_it_runs_here(name, problem)
    space = template_of("moe_linear", name).space(problem, target_of(ISA_OF[name]))
    for params in space[:: max(1, len(space) // 6)]:
        kernel = compiled(problem, name, ISA_OF[name], tuple(params.items()))
        for tokens in (1, 6, 53):
            assert_exact(kernel, Workload.of(problem, T=tokens), 2, Distribution.HEAVY_TAIL)


@pytest.mark.parametrize(("experts", "top", "style"), [(32, 4, "chosen"), (37, 8, "all"), (4, 4, "all"),
                                                       (3, 1, "chosen")])
def test_routing_is_exact_for_any_tokens_and_threads(experts: int, top: int, style: str) -> None:
    kernel = compiled(Problem.of("moe_route", E=experts, k=top, style=style))
    for tokens, threads in ((1, 1), (1, 2), (4, 3), (5, 2), (70, 3), (6, 5)):
        for distribution in (Distribution.NORMAL, Distribution.EQUAL, Distribution.NAN, Distribution.ROWS):
            workload = Workload.of(Problem.of("moe_route", E=experts, k=top, style=style), T=tokens)
            assert_exact(kernel, workload, threads, distribution)


@pytest.mark.parametrize("isa", ISAS)
def test_a_whole_softmax_is_exact_on_every_instruction_set(isa: str) -> None:
    problem = Problem.of("moe_route", E=37, k=3, style="all")
    for distribution in (Distribution.NORMAL, Distribution.LARGE, Distribution.INFINITE):
        assert_exact(compiled(problem, isa=isa), Workload.of(problem, T=9), 2, distribution)


def test_equal_logits_are_routed_to_the_lowest_ids() -> None:
    problem = Problem.of("moe_route", E=6, k=3, style="chosen")
    rows = [[1, 5, 5, 2, 5, 5], [-0.0, 0.0, -1, -0.0, 0.0, 0.0], [np.nan, 1, np.nan, 2, -np.inf, 3]]
    logits = np.array(rows, np.float32)
    out = run(compiled(problem), Workload.of(problem, T=3), {"logits": logits}, 2)
    assert out["ids"].tolist() == [[1, 2, 4], [0, 1, 3], [0, 2, 5]]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("width", "top"), [(64, 4), (83, 1), (9, 8)])
def test_combining_is_exact_for_any_tokens_and_threads(width: int, top: int, isa: str) -> None:
    problem = Problem.of("moe_combine", H=width, k=top)
    for tokens, threads in ((1, 1), (1, 3), (70, 2)):
        for distribution in (Distribution.NORMAL, Distribution.CANCEL, Distribution.TINY):
            assert_exact(compiled(problem, isa=isa), Workload.of(problem, T=tokens), threads, distribution)


def test_a_layer_of_experts_is_the_same_for_a_token_alone_and_among_others() -> None:
    """Routing, both products and the sum in a row, as a model calls them."""
    hidden, inner, e, top = 96, 32, 6, 2
    first = experts_problem("mxfp4", "a8", "swiglu_oai", "token", e=e, top=top, width=hidden, n=2 * inner)
    second = experts_problem("mxfp4", "a8", "none", "slot", e=e, top=top, width=inner, n=hidden, rows=16)
    route, combine = Problem.of("moe_route", E=e, k=top, style="chosen"), Problem.of("moe_combine", H=hidden, k=top)
    operator = operators.get("moe_linear")
    up, down = (operator.inputs(Workload.of(p, T=1), 7, Distribution.NORMAL) for p in (first, second))
    name = quickest(first)
    kernels = {p: compiled(p, name, ISA_OF[name]) for p in (first, second)} | {p: compiled(p) for p in (route, combine)}
    rng = np.random.default_rng(9)
    x, logits, residual = (rng.standard_normal((20, width)).astype(np.float32) for width in (hidden, e, hidden))

    def layer(rows: slice) -> np.ndarray:
        t = len(x[rows])

        def call(problem: Problem, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return run(kernels[problem], Workload.of(problem, T=t), inputs, 2)

        routed = call(route, {"logits": logits[rows]})
        slots = {name: routed[name] for name in ("order", "expert_start")}
        middle = call(first, {"x": x[rows], **slots, "w": up["w"], "bias": up["bias"]})["out"]
        given = call(second, {"x": middle, **slots, "w": down["w"], "bias": down["bias"]})["out"]
        return call(combine, {"x": given, "weights": routed["weights"], "out": residual[rows]})["out"].copy()

    together = layer(slice(None))
    assert not np.array_equal(together, residual)
    for t in range(20):
        assert layer(slice(t, t + 1)).tobytes() == together[t:t + 1].tobytes()
