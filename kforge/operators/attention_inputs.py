"""Inputs of ``paged_attention``: ragged sequences, shuffled pages, poison wherever nothing may be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.workload import Workload
from kforge.operators import numerics
from kforge.operators.base import Distribution
from kforge.operators.kv_cache import KvProblem

if TYPE_CHECKING:
    import numpy as np

# Slots that nobody may read hold NaN, or, as in an engine that reuses pages, large stale values.
_STALE = (Distribution.HEAVY_TAIL, Distribution.LARGE)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Queries and contexts of each sequence, int64 [S]."""

    queries: np.ndarray
    context: np.ndarray


def attention_inputs(workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
    """See ``PagedAttention.inputs``. ONE_HOT: v is zero but for one position per sequence, so that the output is a
    single term. CANCEL: positions come in pairs with equal k and opposite v."""
    import numpy as np

    p, axes = KvProblem.of(workload.problem), workload.axes
    rng = np.random.default_rng([seed, 5])
    batch = _batch(workload, p, rng)
    table = np.full((axes["S"], axes["B"]), -1, np.int32)
    order = rng.permutation(axes["pages"]).astype(np.int32)
    used = 0
    for s, pages in enumerate(-(-batch.context // p.page)):
        table[s, :pages] = order[used:used + pages]
        used += pages
    shapes = p.cache_shapes(axes["pages"])
    k, v = (_cache(rng, shape, distribution) for shape in shapes.values())
    for s, context in enumerate(batch.context):
        _shape_values(k, v, table[s], int(context), rng, distribution)
    if distribution is Distribution.TINY:
        k *= np.float32(1e-6)
        v *= np.float32(1e-6)
    _poison(k, v, table, batch.context, np.float32(1e4) if distribution in _STALE else np.float32(np.nan))
    special = distribution in (Distribution.ONE_HOT, Distribution.CANCEL, Distribution.LARGE)
    q = numerics.draw(rng, axes["T"], p.heads * p.d, Distribution.NORMAL if special else distribution)
    if distribution is Distribution.LARGE:
        q *= np.float32(8)  # scores so far apart that a few positions take all
    return {"q": q, "k_cache": numerics.narrow(k, p.dtype), "v_cache": numerics.narrow(v, p.dtype),
            "block_table": table, "query_start": np.concatenate([[0], np.cumsum(batch.queries)]).astype(np.int32),
            "context": batch.context.astype(np.int32)}


def _batch(workload: Workload, p: KvProblem, rng: np.random.Generator) -> _Batch:
    """Even and full when the pages suffice for S * B, else ragged within the pages; one context is ``max_context``."""
    import numpy as np

    axes = workload.axes
    t, s, longest, pages = axes["T"], axes["S"], axes["max_context"], axes["pages"]
    queries = np.full(s, t // s)
    queries[:t % s] += 1
    full = np.full(s, longest)
    if queries.max(initial=0) > longest or axes["B"] * p.page < longest:
        raise ValueError(f"{workload.key}: {longest} positions do not hold the queries, or B pages not the positions")
    if (-(-full // p.page)).sum() <= pages:
        return _Batch(queries, full)
    for _ in range(s):  # move queries between sequences
        giver, taker = rng.integers(0, s, 2)
        moved = int(rng.integers(0, max(queries[giver], 1)))
        if queries[taker] + moved <= longest and (t < s or queries[giver] - moved >= 1):
            queries[giver] -= moved
            queries[taker] += moved
    context = np.maximum(queries, 1)
    context[int(rng.integers(0, s))] = longest
    free = pages - int((-(-context // p.page)).sum())
    if free < 0:
        raise ValueError(f"{workload.key}: {pages} pages do not hold {t} new tokens and a context of {longest}")
    for i in rng.permutation(s):
        most = min(longest, (-(-int(context[i]) // p.page) + free) * p.page)
        grown = int(rng.integers(context[i], most + 1))
        free -= -(-grown // p.page) - -(-int(context[i]) // p.page)
        context[i] = grown
    return _Batch(queries, context)


def _cache(rng: np.random.Generator, shape: tuple[int, ...], distribution: Distribution) -> np.ndarray:
    import numpy as np

    values = numerics.normals(rng, shape)
    if distribution is Distribution.POSITIVE:
        values = np.abs(values)
    elif distribution is Distribution.HEAVY_TAIL:
        values.reshape(-1)[rng.integers(0, values.size, max(1, values.size // 1000))] *= 100
    return values


def _shape_values(k: np.ndarray, v: np.ndarray, pages: np.ndarray, context: int, rng: np.random.Generator,
                  distribution: Distribution) -> None:
    """Give one sequence what its distribution asks for, in place."""
    import numpy as np

    size = v.shape[2]
    places = rng.permutation(context)
    page, offset = pages[places // size], places % size
    if distribution is Distribution.ONE_HOT:
        kept = v[page[0], :, offset[0]] * np.float32(context)
        v[pages[:-(-context // size)]] = 0
        v[page[0], :, offset[0]] = kept
    elif distribution is Distribution.CANCEL:
        pairs = context // 2
        one, other = slice(0, pairs), slice(pairs, 2 * pairs)
        v[page[other], :, offset[other]] = -v[page[one], :, offset[one]]
        k[page[other], :, :, offset[other]] = k[page[one], :, :, offset[one]]


def _poison(k: np.ndarray, v: np.ndarray, table: np.ndarray, context: np.ndarray, value: np.float32) -> None:
    """Overwrite every slot that belongs to no position of any sequence."""
    import numpy as np

    size = v.shape[2]
    free = np.ones(v.shape[0], bool)
    for pages, length in zip(table, context, strict=True):
        last = -(-int(length) // size)
        free[pages[:last]] = False
        if length % size:
            k[pages[last - 1], :, :, length % size:] = value
            v[pages[last - 1], :, length % size:] = value
    k[free] = value
    v[free] = value
