"""Attention's inputs have sequences with common pages, and a kernel that takes more for common than is so is caught."""

import numpy as np
import pytest
from operator_problems import attention, ratio

from kforge import operators
from kforge.core.dtypes import DType
from kforge.operators import Distribution

WORKLOAD = attention("f16", hq=2, hkv=1, d=16, T=8, S=8, B=32, pages=8 * 32, max_context=1024)
WINDOWED = attention("f16", hq=2, hkv=1, d=16, window=300, sinks=1, T=8, S=8, B=32, pages=8 * 32, max_context=1024)
SHARED = [d for d in Distribution if d not in (Distribution.NORMAL, Distribution.EQUAL)]


def table_of(workload, seed, distribution):
    return operators.get("paged_attention").inputs(workload, seed, distribution)["block_table"]


def common(table):
    """[S, S]: how many pages two sequences begin with in common."""
    return np.cumprod(table[:, None] == table[None], axis=2).sum(axis=2)


@pytest.mark.parametrize("distribution", SHARED)
def test_one_of_two_seeds_has_sequences_with_whole_chunks_in_common(distribution):
    for seed in (2, 4, 6):
        pages = common(table_of(WORKLOAD, seed, distribution))
        np.fill_diagonal(pages, 0)
        assert (pages * 32 >= 512).any()
        own = [row[row >= 0] for row in table_of(WORKLOAD, seed + 1, distribution)]
        assert len(np.unique(np.concatenate(own))) == sum(map(len, own))


def test_what_is_timed_has_no_common_pages():
    for seed in range(4):
        table = table_of(WORKLOAD, seed, Distribution.NORMAL)
        assert len(np.unique(table)) == table.size


def test_pages_with_queries_of_their_own_are_nobody_elses():
    workload = attention("f16", hq=2, hkv=1, d=16, T=200, S=8, B=32, pages=8 * 32, max_context=1024)
    for seed in (2, 4, 6):
        given = operators.get("paged_attention").inputs(workload, seed, Distribution.POSITIVE)
        pages = common(given["block_table"])
        np.fill_diagonal(pages, 0)
        assert pages.any()
        assert (pages.max(axis=1) * 32 <= given["context"] - np.diff(given["query_start"])).all()


@pytest.mark.parametrize("workload", [WORKLOAD, WINDOWED], ids=["all", "window"])
def test_nothing_that_a_sequence_sees_is_poison(workload):
    operator = operators.get("paged_attention")
    for seed in (2, 4, 6):
        given = operator.inputs(workload, seed, Distribution.POSITIVE)
        assert np.isfinite(operator.spec(workload, given)["out"]).all()
        assert np.isnan(given["k_cache"].astype(np.float32)).any()


def first_page_decides(given):
    """Whole rows are taken for equal where their first pages are."""
    table = given["block_table"]
    first = [int(np.flatnonzero(table[:, 0] == page)[0]) for page in table[:, 0]]
    return np.where((table >= 0) & (table[first] >= 0), table[first], table)


def a_page_too_many(given):
    """Sequences are taken to have one more page in common than they have."""
    table, pages = given["block_table"].copy(), common(given["block_table"])
    for s in range(1, len(table)):
        giver = int(pages[s, :s].argmax())
        n = int(pages[s, giver])
        if 0 < n < table.shape[1] and min(table[s, n], table[giver, n]) >= 0:
            table[s, n] = table[giver, n]
    return table


@pytest.mark.parametrize("mistake", [first_page_decides, a_page_too_many])
@pytest.mark.parametrize("distribution", [Distribution.ONE_HOT, Distribution.MIXED, Distribution.ROWS])
def test_a_kernel_that_takes_more_for_common_is_caught(mistake, distribution):
    operator = operators.get("paged_attention")
    for seed in (2, 4, 6):
        given = operator.inputs(WORKLOAD, seed, distribution)
        wrong = operator.spec(WORKLOAD, {**given, "block_table": mistake(given).astype(np.int32)})["out"]
        assert not np.array_equal(wrong, operator.spec(WORKLOAD, given)["out"], equal_nan=True)
        assert ratio(operator.reference(WORKLOAD, given)["out"], wrong, DType.F32) > 1
