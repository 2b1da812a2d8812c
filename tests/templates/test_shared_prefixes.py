"""Sequences that have their first pages in common are read together, and no bit of anybody's result changes."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_running import assert_exact, compiled, run, target_of, template_of

from kforge import operators
from kforge.core.workload import Problem, Workload
from kforge.operators.base import Arrays, Distribution

SMOL = Problem.of("paged_attention", Hq=9, Hkv=3, D=64, P=64, kv="bf16")
INT8 = Problem.of("paged_attention", Hq=9, Hkv=3, D=64, P=64, kv="i8")
SINKS = Problem.of("paged_attention", Hq=16, Hkv=2, D=64, P=64, kv="f16", sinks=1)
# Pages that no chunk ends with, pages longer than a chunk, more rows to a group than registers hold, one row.
OTHERS = [Problem.of("paged_attention", Hq=8, Hkv=2, D=128, P=16, kv="f32"),
          Problem.of("paged_attention", Hq=7, Hkv=1, D=80, P=48, kv="f16"),
          Problem.of("paged_attention", Hq=2, Hkv=2, D=16, P=512, kv="bf16"),
          Problem.of("paged_attention", Hq=6, Hkv=2, D=32, P=32, kv="i8", window=300, sinks=1)]
KERNELS = [("avx512", "host"), ("portable", "avx2"), ("portable", "plain")]
CASES = [pytest.param(problem, kernel, marks=() if kernel[0] == "avx512" and i < 2 else pytest.mark.slow)
         for kernel in KERNELS for i, problem in enumerate((SMOL, INT8, SINKS, *OTHERS))]


def kernel_of(problem: Problem, name: str, isa: str):
    if template_of("paged_attention", name).applies(problem, target_of(isa)) is not None:
        pytest.skip(f"this machine has no {name}")
    return compiled(problem, name, isa)


def best(problem: Problem):
    applies = template_of("paged_attention", "avx512").applies(problem, target_of("host")) is None
    return compiled(problem, "avx512" if applies else "portable")


def together(problem: Problem, contexts: list[int], rows: dict[int, tuple[int, int]],
             queries: list[int]) -> tuple[Workload, Arrays]:
    """A call whose sequence s has the first positions of another one, whole pages of them: ``rows[s]`` says whose and
    how many positions."""
    page, sequences = problem.int("P"), len(contexts)
    blocks = -(-max(contexts) // page)
    workload = Workload.of(problem, T=sum(queries), S=sequences, B=blocks, pages=sequences * blocks,
                           max_context=max(contexts))
    inputs = dict(operators.get("paged_attention").inputs(workload, 1, Distribution.NORMAL))
    table = inputs["block_table"].copy()
    for s, (giver, positions) in rows.items():
        table[s, :positions // page] = table[giver, :positions // page]
    start = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    return workload, {**inputs, "block_table": table, "query_start": start, "context": np.array(contexts, np.int32)}


@pytest.mark.parametrize(("problem", "kernel"), CASES, ids=lambda x: x.key if isinstance(x, Problem) else "-".join(x))
def test_random_trees_of_prefixes_are_exact(problem: Problem, kernel: tuple[str, str]) -> None:
    """Inputs as the checks draw them: each sequence may have a part of an earlier one's, decoding beside prefill."""
    built, operator, page = kernel_of(problem, *kernel), operators.get("paged_attention"), problem.int("P")
    for tokens, sequences, longest, even in ((9, 9, 1300, True), (14, 14, 1100, False), (60, 7, 900, False)):
        blocks = -(-longest // page)
        pages = sequences * blocks if even else blocks + sequences * blocks // 2 + -(-tokens // page)
        work = Workload.of(problem, T=tokens, S=sequences, B=blocks, pages=pages, max_context=longest)
        for seed, threads in ((2, 1), (4, 2), (6, 5)):
            inputs = operator.inputs(work, seed, Distribution.ROWS)
            assert_exact(built, work, threads, Distribution.ROWS, inputs)


@pytest.mark.parametrize("problem", [SMOL, INT8], ids=["bf16", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_long_prefix_is_exact_however_threads_cut_it(problem: Problem, threads: int) -> None:
    """More sequences than go together, in two groups that alternate in the batch, one of them in two branches."""
    contexts = [1600 + 37 * s for s in range(20)]
    rows = {s: (s % 2, 1536 if s % 4 else 768) for s in range(2, 20)}
    work, inputs = together(problem, contexts, rows, [1] * 20)
    assert_exact(best(problem), work, threads, inputs=inputs)


def test_prefixes_that_end_around_a_chunk_are_exact() -> None:
    """Common pages short of a chunk, up to one, beyond; all of a context, and contexts that end with a chunk."""
    contexts = [1000, 1000, 1000, 1000, 1000, 256, 512, 513, 300]
    rows = {1: (0, 192), 2: (0, 256), 3: (0, 320), 4: (3, 960), 5: (0, 256), 6: (0, 512), 7: (6, 512), 8: (2, 256)}
    for threads in (1, 2, 5):
        work, inputs = together(SMOL, contexts, rows, [1] * len(contexts))
        assert_exact(best(SMOL), work, threads, inputs=inputs)


def test_prefill_chunks_and_idle_sequences_between_the_decoding_ones_are_exact() -> None:
    contexts, queries = [900, 800, 700, 640, 900, 850], [1, 0, 1, 40, 1, 3]
    rows = {s: (0, 512) for s in range(1, len(contexts))}
    for threads in (1, 2, 5):
        work, inputs = together(SMOL, contexts, rows, queries)
        assert_exact(best(SMOL), work, threads, inputs=inputs)


def test_a_sequence_gets_the_bits_that_it_gets_alone() -> None:
    contexts = [1100] * 12
    work, inputs = together(SMOL, contexts, {s: (0, 1024) for s in range(1, 12)}, [1] * 12)
    whole = run(best(SMOL), work, inputs, 2)["out"]
    for s in (0, 5, 11):
        one = Workload.of(SMOL, **{**work.axes, "T": 1, "S": 1})
        part = {**inputs, "q": inputs["q"][s:s + 1], "block_table": inputs["block_table"][s:s + 1],
                "context": inputs["context"][s:s + 1], "query_start": np.array([0, 1], np.int32)}
        alone = run(best(SMOL), one, part, 2)["out"]
        assert np.array_equal(alone.view(np.uint32), whole[s:s + 1].view(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize("problem", [SMOL, INT8], ids=["bf16", "int8"])
def test_parameter_sets_are_exact_with_common_prefixes(problem: Problem) -> None:
    template, target = template_of("paged_attention", "avx512"), target_of("host")
    if template.applies(problem, target) is not None:
        pytest.skip("this machine has no AVX-512")
    points = template.space(problem, target)
    work, inputs = together(problem, [1300] * 18, {s: (s % 2, 1024) for s in range(2, 18)}, [1] * 18)
    for params in points[:: max(1, len(points) // 6)]:
        assert_exact(compiled(problem, "avx512", params=tuple(params.items())), work, 3, inputs=inputs)
