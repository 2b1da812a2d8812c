"""Paged attention equals its order specification to the bit, whatever the batch, pages, threads and parameters."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_running import assert_exact, compiled, run, target_of, template_of

from kforge import operators
from kforge.core.workload import Phase, Problem, Workload
from kforge.operators.base import Distribution

SMOL = Problem.of("paged_attention", Hq=9, Hkv=3, D=64, P=64, kv="bf16")
PROBLEMS = [SMOL,
            Problem.of("paged_attention", Hq=8, Hkv=2, D=128, P=16, kv="f32"),
            Problem.of("paged_attention", Hq=7, Hkv=1, D=80, P=48, kv="f16"),
            Problem.of("paged_attention", Hq=2, Hkv=2, D=16, P=512, kv="bf16")]
GPT_OSS = Problem.of("paged_attention", Hq=16, Hkv=2, D=64, P=64, kv="bf16", window=128, sinks=1)
# A window shorter than a prefill tile, one that ends with its own position, one beyond a chunk, and none.
WINDOWS = [GPT_OSS,
           Problem.of("paged_attention", Hq=6, Hkv=2, D=32, P=16, kv="f16", window=5, sinks=1),
           Problem.of("paged_attention", Hq=7, Hkv=1, D=80, P=48, kv="f16", window=300),
           Problem.of("paged_attention", Hq=2, Hkv=2, D=16, P=16, kv="f32", window=1, sinks=1),
           Problem.of("paged_attention", Hq=8, Hkv=2, D=64, P=32, kv="bf16", sinks=1)]
# Integers with scales: pages of one line and others, more heads to a group than a tile of decoding has.
INT8 = Problem.of("paged_attention", Hq=9, Hkv=3, D=64, P=64, kv="i8")
SCALED = [INT8, Problem.of("paged_attention", Hq=6, Hkv=2, D=32, P=32, kv="i8", window=100, sinks=1)]
KERNELS = [("avx512", "host"), ("portable", "avx2"), ("portable", "plain")]
# Compiling takes seconds: the portable template sees half of the problems by default.
CASES = [pytest.param(problem, kernel, marks=pytest.mark.slow if kernel[0] == "portable" and i % 2 else ())
         for kernel in KERNELS for i, problem in enumerate(PROBLEMS)]
CASES += [pytest.param(problem, kernel, marks=() if kernel[0] == "avx512" and i < 2 else pytest.mark.slow)
          for kernel in KERNELS for i, problem in enumerate(WINDOWS)]
CASES += [pytest.param(problem, kernel, marks=() if kernel[0] == "avx512" and problem is INT8 else pytest.mark.slow)
          for kernel in KERNELS for problem in SCALED]


def ragged(problem: Problem, tokens: int, sequences: int, longest: int) -> Workload:
    """Few pages: sequences of different length."""
    page = problem.int("P")
    blocks = -(-longest // page)
    pages = blocks + sequences - 1 + -(-tokens // page) + (sequences - 1) * blocks // 3 + 1
    return Workload.of(problem, T=tokens, S=sequences, B=blocks + 1, pages=pages, max_context=longest)


def available(name: str, isa: str, problem: Problem) -> bool:
    return template_of("paged_attention", name).applies(problem, target_of(isa)) is None


@pytest.mark.parametrize(("problem", "kernel"), CASES, ids=lambda x: x.key if isinstance(x, Problem) else "-".join(x))
def test_mixed_steps_are_exact(problem: Problem, kernel: tuple[str, str]) -> None:
    if not available(*kernel, problem):
        pytest.skip(f"this machine has no {kernel[0]}")
    built = compiled(problem, *kernel)
    for tokens, sequences, longest in ((1, 1, 1), (3, 3, 700), (60, 5, 600), (70, 1, 70), (33, 1, 290)):
        for threads in (1, 2, 5):
            assert_exact(built, ragged(problem, tokens, sequences, longest), threads)


@pytest.mark.parametrize("problem", [SMOL, GPT_OSS, INT8], ids=["plain", "window and sinks", "int8"])
@pytest.mark.parametrize("distribution", list(Distribution))
def test_every_distribution_is_exact(distribution: Distribution, problem: Problem) -> None:
    name = "avx512" if available("avx512", "host", problem) else "portable"
    for tokens, sequences, longest in ((2, 2, 513), (40, 2, 300)):
        assert_exact(compiled(problem, name), ragged(problem, tokens, sequences, longest), 2, distribution)


@pytest.mark.parametrize("problem", [SMOL, GPT_OSS, INT8], ids=["plain", "window and sinks", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_long_sequence_is_cut_over_threads_without_changing_a_bit(threads: int, problem: Problem) -> None:
    name = "avx512" if available("avx512", "host", problem) else "portable"
    for longest in (257, 2000, 5000):
        assert_exact(compiled(problem, name), ragged(problem, 1, 1, longest), threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_window_at_every_place_in_its_chunks_is_exact(threads: int) -> None:
    """Contexts around the window's length and around multiples of a chunk, so that it lies in one chunk or in two."""
    name = "avx512" if available("avx512", "host", GPT_OSS) else "portable"
    for longest in (1, 127, 128, 129, 256, 257, 383, 384, 385, 512, 513, 639, 640, 700):
        assert_exact(compiled(GPT_OSS, name), ragged(GPT_OSS, 1, 1, longest), threads)
        assert_exact(compiled(GPT_OSS, name), ragged(GPT_OSS, min(longest, 20), 1, longest), threads)


@pytest.mark.parametrize("problem", [SMOL, GPT_OSS, INT8], ids=["plain", "window and sinks", "int8"])
def test_a_prompt_in_chunks_gives_the_bits_of_the_whole_prompt(problem: Problem) -> None:
    name = "avx512" if available("avx512", "host", problem) else "portable"
    kernel, length = compiled(problem, name), 300
    operator = operators.get("paged_attention")
    whole = ragged(problem, length, 1, length)
    inputs = operator.inputs(whole, 1, Distribution.NORMAL)
    wanted = run(kernel, whole, inputs, 2)["out"]
    first = 0
    for size in (1, 100, 7, 192):
        axes = {**whole.axes, "T": size}
        part = {**inputs, "q": np.ascontiguousarray(inputs["q"][first:first + size]),
                "query_start": np.array([0, size], np.int32), "context": np.array([first + size], np.int32)}
        got = run(kernel, Workload.of(problem, 1.0, Phase.PREFILL, **axes), part, 2)["out"]
        assert np.array_equal(got.view(np.uint32), wanted[first:first + size].view(np.uint32)), f"chunk at {first}"
        first += size


@pytest.mark.slow
@pytest.mark.parametrize("problem", [SMOL, GPT_OSS, INT8], ids=["plain", "window and sinks", "int8"])
def test_parameter_sets_are_exact(problem: Problem) -> None:
    template, target = template_of("paged_attention", "avx512"), target_of("host")
    if template.applies(problem, target) is not None:
        pytest.skip("this machine has no AVX-512")
    points = template.space(problem, target)
    for params in points[:: max(1, len(points) // 12)]:
        kernel = compiled(problem, "avx512", params=tuple(params.items()))
        for tokens, sequences, longest in ((3, 3, 700), (60, 5, 600)):
            assert_exact(kernel, ragged(problem, tokens, sequences, longest), 2)
