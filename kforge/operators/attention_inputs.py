"""Inputs of ``paged_attention``: ragged sequences, shuffled pages, poison wherever nothing may be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Workload
from kforge.operators import numerics
from kforge.operators.base import Distribution
from kforge.operators.kv_cache import AttentionProblem

if TYPE_CHECKING:
    import numpy as np

# Slots that nobody may read hold NaN, or, as in an engine that reuses pages, large stale values.
_STALE = (Distribution.HEAVY_TAIL, Distribution.LARGE)
# Queries follow the distribution of keys and values; with the others they are normal.
_SAME_QUERIES = (Distribution.HEAVY_TAIL, Distribution.POSITIVE, Distribution.NEGATIVE, Distribution.TINY)
_APART = (Distribution.NORMAL, Distribution.EQUAL)  # sequences whose pages are their own, whatever the seed
_FAR_SINKS = (1e4, -1e4, 95.0)  # all of the weight, none of it, and so much that the rest is denormal
# Normal values times this. Of integers the scale is normal: its products with weights below one are not.
_DENORMAL = {DType.F32: 1e-40, DType.BF16: 2e-39, DType.F16: 1e-5, DType.I8: 1e-36}


@dataclass(frozen=True, eq=False)
class _Batch:
    """Queries and contexts of each sequence, int64 [S]."""

    queries: np.ndarray
    context: np.ndarray


@dataclass(frozen=True)
class _Prefix:
    """The first ``pages`` pages of a sequence are those of an earlier one, ``giver``."""

    giver: int
    pages: int


def attention_inputs(workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
    """See ``PagedAttention.inputs``. With ROWS every sequence has a distribution of its own. What ``numerics.draw``
    does not say: ONE_HOT gives each position its value in a single component of v, in turn, so that every component is
    a sum of few terms, in which each position weighs; CANCEL has positions in pairs with equal k and opposite v.

    With an even seed, and a distribution other than NORMAL and EQUAL, sequences have their first pages in common
    (``_prefixes``).
    With a window, what no query sees in front of it holds poison too, and every other sequence has given back the pages
    that hold nothing else to it. Sinks weigh about as much as all positions together; ``_sinks`` has the exceptions."""
    import numpy as np

    p, axes = AttentionProblem.of(workload.problem), workload.axes
    rng = np.random.default_rng([seed, 5])
    batch = _batch(workload, p, rng)
    table = np.full((axes["S"], axes["B"]), -1, np.int32)
    order = rng.permutation(axes["pages"]).astype(np.int32)
    shared, used = np.zeros(axes["S"], np.int64), 0
    apart = distribution in _APART or seed % 2 == 1
    prefixes = {} if apart else _prefixes(batch, p.page, seed)
    for s, pages in enumerate((-(-batch.context // p.page)).tolist()):
        if s in prefixes:
            shared[s] = prefixes[s].pages
            table[s, :shared[s]] = table[prefixes[s].giver, :shared[s]]
        own = pages - int(shared[s])
        table[s, shared[s]:pages] = order[used:used + own]
        used += own
    k, v = (numerics.normals(rng, shape) for shape in p.cache_shapes(axes["pages"]).values())
    q = numerics.draw(rng, axes["T"], p.heads * p.d, Distribution.NORMAL)
    start = np.concatenate([[0], np.cumsum(batch.queries)]).astype(np.int32)
    kinds = [d for d in Distribution if d is not Distribution.ROWS]
    chosen = np.resize(rng.permutation(len(kinds)), axes["S"])
    hidden = [p.first_seen(c - max(n, 1)) for c, n in zip(batch.context.tolist(), batch.queries.tolist(), strict=True)]
    unseen = _unseen(table, hidden, p.page, axes["pages"])
    for s, context in enumerate(batch.context.tolist()):
        kind = kinds[chosen[s]] if distribution is Distribution.ROWS else distribution
        pages, before = table[s, shared[s]:-(-context // p.page)], int(shared[s]) * p.page
        keys, values = k[pages], v[pages]
        _shape_cache(keys, values, max(hidden[s] - before, 0), context - before, rng, kind, p.dtype)
        stale = np.float32(1e4) if kind in _STALE else np.float32(np.nan)
        if context % p.page:
            keys[-1, :, :, context % p.page:] = values[-1, :, context % p.page:] = stale
        for i, rest in enumerate(unseen[pages].tolist()):
            keys[i, :, :, :rest] = values[i, :, :rest] = stale
        k[pages], v[pages] = keys, values
        queries = q[start[s]:start[s + 1]]
        if kind in _SAME_QUERIES:
            queries[...] = numerics.draw(rng, len(queries), p.heads * p.d, kind)
        elif kind is Distribution.LARGE:
            queries *= np.float32(8)  # scores so far apart that a few positions take all
            queries[-1:] *= np.float32(16)  # and beyond what exp can hold, were the maximum not subtracted
        elif kind is Distribution.ONE_HOT:
            queries *= np.float32(0.125)  # scores so close that every position weighs
    for s in range(seed % 2, axes["S"], 2):
        table[s, :hidden[s] // p.page] = -1
    free = np.setdiff1d(np.arange(axes["pages"]), table)
    k[free] = v[free] = np.float32(1e4) if distribution in _STALE else np.float32(np.nan)
    made = {"q": q, **p.stored(k, v), "block_table": table, "query_start": start,
            "context": batch.context.astype(np.int32)}
    if p.sinks:
        longest = int(batch.context.max())
        made["sinks"] = _sinks(np.random.default_rng([seed, 11]), p, min(longest, p.window or longest), distribution)
    return made


def _prefixes(batch: _Batch, page: int, seed: int) -> dict[int, _Prefix]:
    """By sequence, as a prefix cache has it: whole pages in front of the queries of both. Most sequences have a prefix
    in common with a random earlier one, mostly as long as can be; so there are trees, and groups that lie apart."""
    import numpy as np

    rng = np.random.default_rng([seed, 12])
    whole = (batch.context - np.maximum(batch.queries, 1)) // page
    made = {}
    for s in range(1, len(whole)):
        giver = int(rng.integers(0, s))
        most = int(min(whole[s], whole[giver]))
        fewer, kind = int(rng.integers(0, most + 1)), int(rng.integers(0, 6))
        pages = 0 if kind == 0 else fewer if kind < 3 else most
        if pages:
            made[s] = _Prefix(giver, pages)
    return made


def _unseen(table: np.ndarray, hidden: list[int], page: int, pages: int) -> np.ndarray:
    """int64 [pages]: how many positions at the beginning of each page no sequence with it sees. ``hidden``: how many
    there are in front of what each sequence sees."""
    import numpy as np

    made = np.full(pages, page)
    for row, first in zip(table, hidden, strict=True):
        used = row[row >= 0]
        made[used] = np.minimum(made[used], np.clip(first - page * np.arange(len(used)), 0, page))
    return made


def _sinks(rng: np.random.Generator, p: AttentionProblem, seen: int, distribution: Distribution) -> np.ndarray:
    """float32 [Hq], for queries that see up to ``seen`` positions."""
    import numpy as np

    heads, group = p.heads, p.heads // p.kv_heads
    sinks = np.log(seen) + rng.standard_normal(heads)
    order = rng.permutation(heads)
    match distribution:
        case Distribution.LARGE:  # scores are far apart
            sinks += 30 * rng.standard_normal(heads)
        case Distribution.HEAVY_TAIL | Distribution.MIXED | Distribution.ROWS:
            for i, value in zip(order[:heads // 2], _FAR_SINKS, strict=False):
                sinks[i] = value
        case Distribution.NAN if group > 1:  # in each group: all heads of one may see a key that is NaN
            sinks[np.arange(p.kv_heads) * group + rng.integers(0, group, p.kv_heads)] = np.nan
        case Distribution.INFINITE:
            for i, value in zip(order[:max(heads // 2, 1)], (-np.inf, np.inf), strict=False):
                sinks[i] = value
    return sinks.astype(np.float32)


def _batch(workload: Workload, p: AttentionProblem, rng: np.random.Generator) -> _Batch:
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


def _shape_cache(k: np.ndarray, v: np.ndarray, begin: int, context: int, rng: np.random.Generator,
                 kind: Distribution, dtype: DType) -> None:
    """Give the pages of one sequence, k[pages, Hkv, D, P] and v[pages, Hkv, P, D], what its distribution asks for. What
    it asks of single positions is done to some of begin..context-1."""
    import numpy as np

    size, d = v.shape[2:]
    places = begin + rng.permutation(context - begin)
    page, offset = places // size, places % size
    match kind:
        case Distribution.POSITIVE:
            np.abs(k, out=k)
            np.abs(v, out=v)
        case Distribution.NEGATIVE:
            np.negative(np.abs(k), out=k)
            np.negative(np.abs(v), out=v)
        case Distribution.HEAVY_TAIL:
            for part in (k, v):
                part.reshape(-1)[rng.integers(0, part.size, max(1, part.size // 1000))] *= 100
        case Distribution.TINY:
            k *= np.float32(1e-6)
            v *= np.float32(1e-6)
        case Distribution.DENORMAL:
            v *= np.float32(_DENORMAL[dtype])
        case Distribution.MIXED:
            v[page, :, offset] *= numerics.magnitudes(rng, (len(places), 1, 1))
        case Distribution.SPARSE:
            k *= rng.integers(0, 2, k.shape)
            v *= rng.integers(0, 2, v.shape)
        case Distribution.EQUAL:
            k[...] = k[:1, :, :, :1]
            v[...] = rng.choice(numerics.TWO_BITS, (v.shape[1], 1, d))
            if dtype is DType.I8:
                v[..., :1] = 127 / 32  # makes the scales powers of two, so that sums stay exact
        case Distribution.ONE_HOT:
            shape = (len(places), v.shape[1])
            sizes = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
            v[...] = 0
            v[page, :, offset, np.resize(rng.permutation(d), len(places))] = sizes * min(len(places), d)
        case Distribution.CANCEL:
            pairs = len(places) // 2
            one, other = slice(0, pairs), slice(pairs, 2 * pairs)
            v[page[other], :, offset[other]] = -v[page[one], :, offset[one]]
            k[page[other], :, :, offset[other]] = k[page[one], :, :, offset[one]]
        case Distribution.NAN | Distribution.INFINITE:
            heads = rng.permutation(v.shape[1])
            here, there = (int(j) for j in rng.integers(begin, context, 2))
            if kind is Distribution.INFINITE:
                for j, value in ((here, np.inf), (there, -np.inf)):
                    v[j // size, heads[0], j % size, int(rng.integers(0, d))] = value
                return
            v[here // size, heads[0], here % size, int(rng.integers(0, d))] = np.nan
            if len(heads) > 1:  # all that sees this key is NaN: not in every head
                k[there // size, heads[1], int(rng.integers(0, d)), there % size] = np.nan
