"""The kernels around linear and attention equal their order specifications to the bit on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_running import ISAS, assert_exact, compiled, run, target_of, template_of

from kforge.core.workload import Phase, Problem, Workload
from kforge.operators.base import Distribution

NORMS = [Problem.of("rms_norm", H=576, residual=0),
         Problem.of("rms_norm", H=83, residual=1), Problem.of("rms_norm", H=9, residual=0)]
ROPES = [Problem.of("rope_kv_write", Hq=9, Hkv=3, D=64, P=64, kv="bf16", style="norm"),
         Problem.of("rope_kv_write", Hq=4, Hkv=2, D=80, P=16, kv="f16", style="neox"),
         Problem.of("rope_kv_write", Hq=4, Hkv=2, D=48, P=48, kv="f32", style="norm"),
         Problem.of("qk_norm_rope_kv_write", Hq=4, Hkv=2, D=128, P=64, kv="f16", style="neox"),
         Problem.of("qk_norm_rope_kv_write", Hq=2, Hkv=1, D=48, P=16, kv="bf16", style="norm"),
         Problem.of("rope_kv_write", Hq=9, Hkv=3, D=64, P=64, kv="i8", style="norm"),
         Problem.of("qk_norm_rope_kv_write", Hq=2, Hkv=1, D=48, P=16, kv="i8", style="neox")]
WEIGHTS = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "mxfp4",
           "int8_channel"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("problem", NORMS, ids=lambda p: p.key)
def test_rms_norm_is_exact_for_any_tokens_and_threads(problem: Problem, isa: str) -> None:
    for tokens, threads in ((1, 1), (1, 2), (7, 2), (70, 3)):
        for distribution in (Distribution.NORMAL, Distribution.HEAVY_TAIL, Distribution.TINY):
            assert_exact(compiled(problem, isa=isa), Workload.of(problem, T=tokens), threads, distribution)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [64, 1530])
def test_silu_mul_is_exact_for_any_tokens_and_threads(width: int, isa: str) -> None:
    problem = Problem.of("silu_mul", I=width)
    for tokens, threads in ((1, 1), (1, 3), (70, 2)):
        for distribution in (Distribution.NORMAL, Distribution.LARGE, Distribution.TINY):
            assert_exact(compiled(problem, isa=isa), Workload.of(problem, T=tokens), threads, distribution)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("problem", ROPES, ids=lambda p: p.key)
def test_rope_rotates_and_writes_the_cache_to_the_bit(problem: Problem, isa: str) -> None:
    for tokens, threads in ((1, 1), (1, 2), (70, 3)):
        pages = tokens // problem.int("P") + 2
        workload = Workload.of(problem, T=tokens, pages=pages, positions=300)
        more = (Distribution.DENORMAL, Distribution.NAN, Distribution.INFINITE) if problem.str("kv") == "i8" else ()
        for distribution in (Distribution.NORMAL, Distribution.TINY, Distribution.LARGE, *more):
            assert_exact(compiled(problem, isa=isa), workload, threads, distribution)


@pytest.mark.parametrize(("weight", "rows"), [(weight, (16, 32, 64)[i % 3]) for i, weight in enumerate(WEIGHTS)])
def test_embedding_reads_every_format_out_of_panels(weight: str, rows: int) -> None:
    problem = Problem.of("embedding", V=100, H=512 if weight.endswith("_k") else 96, weight=weight, rows=rows)
    for tokens, threads in ((1, 2), (13, 3)):
        assert_exact(compiled(problem), Workload.of(problem, T=tokens), threads)


def test_gather_rows_copies_rows() -> None:
    problem = Problem.of("gather_rows", H=83)
    for rows, threads in ((1, 1), (1, 2), (9, 2)):
        assert_exact(compiled(problem), Workload.of(problem, R=rows, T=rows + 4), threads)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [40, 1003])
def test_argmax_takes_the_lowest_index_among_equals(vocab: int, isa: str) -> None:
    problem = Problem.of("argmax", V=vocab)
    for rows, threads in ((1, 1), (1, 2), (2, 5), (9, 2)):
        for distribution in (Distribution.NORMAL, Distribution.ONE_HOT):
            assert_exact(compiled(problem, isa=isa), Workload.of(problem, R=rows), threads, distribution)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_argmax_lets_nan_win_only_when_there_is_nothing_else(isa: str, threads: int) -> None:
    problem = Problem.of("argmax", V=100)
    logits = np.full((5, 100), np.nan, np.float32)
    logits[1, 63] = -np.inf
    logits[2, [40, 90]] = -3
    logits[3, [17, 99]] = np.inf
    logits[4] = -np.inf
    out = run(compiled(problem, isa=isa), Workload.of(problem, R=5), {"logits": logits}, threads)["out"]
    assert out.tolist() == [0, 63, 40, 17, 0]


@pytest.mark.slow
@pytest.mark.parametrize("problem", [NORMS[1], Problem.of("silu_mul", I=100), Problem.of("argmax", V=333)],
                         ids=lambda p: p.key)
def test_every_parameter_set_is_exact(problem: Problem) -> None:
    axis = "R" if problem.operator == "argmax" else "T"
    for params in template_of(problem.operator, "portable").space(problem, target_of("host")):
        kernel = compiled(problem, params=tuple(params.items()))
        for tokens, threads in ((1, 2), (13, 3)):
            assert_exact(kernel, Workload.of(problem, 1.0, Phase.DECODE, **{axis: tokens}), threads)
