"""``paged_attention``: causal attention of ragged sequences over a paged KV cache, for decoding and prefill chunks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Attr, Problem, Workload
from kforge.operators import buckets, numerics, spec
from kforge.operators.attention_inputs import attention_inputs
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Part, Role, TensorSpec
from kforge.operators.kv_cache import CACHE_TYPES, AttentionProblem
from kforge.operators.numerics import U

if TYPE_CHECKING:
    import numpy as np

_QUERIES_AT_ONCE = 64


class PagedAttention(Operator):
    """out = softmax(scale q k^T) v per query head, over the positions up to the query's own.

    With ``window`` > 0 a query at position p sees the positions p - window + 1 .. p only. With ``sinks`` = 1 each query
    head has a logit, ``sinks[Hq]``, that takes part in the softmax's maximum and sum and has no value: the weights of
    the positions then add up to less than 1. It is not multiplied by ``scale``. Both attributes are 0 where a problem's
    key does not name them.

    Sum of contexts: with pages >= S * B every sequence has ``max_context`` positions; with fewer pages they are ragged.
    Sequences may have pages in common, at the same places of their rows of the block table.
    Slots beyond a sequence's context, those in front of what its first query sees, and pages of no sequence, hold NaN
    or stale values: reading them shows. Unused entries of the block table are -1; so may those be whose pages lie in
    front of what the first query sees, since an engine takes such pages back.

    A NaN or an infinity in k or v reaches the queries that see its position and nobody else, as IEEE arithmetic has it.
    A sink of -inf is none; one of NaN or +inf makes its head's outputs NaN, for all queries.

    Bound. With p_j the exact probabilities, a score's error (the scaled dot product, the subtraction of the maximum
    and that maximum's merges, the exponentials) is a relative error of p_j of

        delta_j = sum_error(D) |scale| sum_d |q_d k_jd| + 4u |s_j - max| + 16u

    and moves the output by p_j delta_j (v_j - out). These are independent from position to position, hence the root of
    the sum of squares (numerics.py). A sink is one position more, whose score has no error of its own and whose v_j is
    0. Accumulation of ``l`` and ``o`` over the c positions that a query sees adds sum_error(c); a product p_j v_j, or
    p_j itself, may underflow (twice as much with a sink, which scales ``o`` once more):

        |out - ref| <= sqrt(sum_j (p_j delta_j)^2 (|v_j| + |ref|)^2) + sum_error(c) (sum_j p_j |v_j| + |ref|)
                       + underflow(c (1 + max_j |v_j|))

    With kv = i8, k_jd and v_jd are integers times ``k_scale`` and ``v_scale`` of their position and head, which no
    rounding has touched. Each scale costs a kernel one product more, ``2u`` of a score's size and ``2u`` of p_j; where
    that of p_j and a scale underflows it is off by up to 128 times as much as a product is.
    """

    name = "paged_attention"
    static_axes = ("Hq", "Hkv", "D", "P", "kv", "window", "sinks")
    dynamic_axes = ("T", "S", "B", "pages", "max_context")
    scalar_names = ("scale",)
    usual: Mapping[str, Attr] = MappingProxyType({"window": 0, "sinks": 0})

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        p, axes = AttentionProblem.of(workload.problem), workload.axes
        t, s = axes["T"], axes["S"]
        sinks = [TensorSpec("sinks", DType.F32, (p.heads,), Role.IN)] if p.sinks else []
        return (TensorSpec("q", DType.F32, (t, p.heads * p.d), Role.IN),
                *p.cache_tensors(axes["pages"], Role.IN),
                TensorSpec("block_table", DType.I32, (s, axes["B"]), Role.IN),
                TensorSpec("query_start", DType.I32, (s + 1,), Role.IN),
                TensorSpec("context", DType.I32, (s,), Role.IN), *sinks,
                TensorSpec("out", DType.F32, (t, p.heads * p.d), Role.OUT))

    def scalars(self, workload: Workload) -> tuple[float, ...]:
        return (workload.problem.int("D") ** -0.5,)

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        made = attention_inputs(workload, seed, distribution)
        if distribution is not Distribution.NORMAL:  # which is what timed calls have
            factor = np.random.default_rng([seed, 10]).uniform(0.9, 0.98)
            made["scale"] = np.array(self.scalars(workload)[0] * factor)
        return made

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        p = AttentionProblem.of(workload.problem)
        q = inputs["q"].astype(np.float64).reshape(-1, p.kv_heads, p.heads // p.kv_heads, p.d)
        sinks = inputs["sinks"].astype(np.float64).reshape(q.shape[1:3]) if p.sinks else None
        exact, bound = np.empty_like(q), np.empty_like(q)
        scale = float(np.float32(self.given_scalars(workload, inputs)[0]))
        for part in _parts(inputs, p):
            for head in range(p.kv_heads):
                queries, own = q[part.first:part.last, head], None if sinks is None else sinks[head]
                done = _attend(queries, part.k[head], part.v[head], part.seen, scale, own, p.scaled)
                exact[part.first:part.last, head], bound[part.first:part.last, head] = done.reference, done.bound
        flat = inputs["q"].shape
        return {"out": Bound(exact.reshape(flat), bound.reshape(flat))}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        p, axes = AttentionProblem.of(workload.problem), workload.axes
        out = np.empty_like(inputs["q"])
        spec.call("paged_attention", axes["S"], axes["B"], p.heads, p.kv_heads, p.d, p.page, CACHE_TYPES.index(p.dtype),
                  p.window, self.given_scalars(workload, inputs)[0],
                  *(inputs[name] for name in ("q", "k_cache", "v_cache", "block_table", "query_start", "context")),
                  *(inputs[name] if p.scaled else None for name in ("k_scale", "v_scale")),
                  inputs["sinks"] if p.sinks else None, out)
        return {"out": out}

    def part(self, workload: Workload, inputs: Arrays, rows: np.ndarray) -> Part:
        """Queries: each becomes a sequence of its own, which ends with it."""
        import numpy as np

        start = inputs["query_start"]
        of = np.searchsorted(start, rows, side="right") - 1
        context = (inputs["context"][of] - (start[of + 1] - 1 - rows)).astype(np.int32)
        axes = {**workload.axes, "T": len(rows), "S": len(rows), "max_context": int(context.max())}
        return Part(Workload.of(workload.problem, workload.count, workload.phase, **axes),
                    {**inputs, "q": inputs["q"][rows], "block_table": inputs["block_table"][of], "context": context,
                     "query_start": np.arange(len(rows) + 1, dtype=np.int32)})

    def cost(self, workload: Workload) -> Cost:
        """From the axes: contexts as ``inputs`` makes them, queries spread evenly over sequences."""
        p, axes = AttentionProblem.of(workload.problem), workload.axes
        t, s = axes["T"], axes["S"]
        context = min(s * axes["max_context"], axes["pages"] * p.page)
        attended = _attended(context / s, t / s, p.window)
        read = min(context, s * (p.window - 1) + t) if p.window else context  # positions that some query sees
        return Cost(read * p.kv_heads * p.position_bytes(), 4 * p.heads * (2 * t * p.d + p.sinks),
                    (("fp32_fma", round(4 * t * p.heads * p.d * attended)),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        """A partial order over tokens, sequences and the longest context: each one is rounded up on its own. With a
        window, contexts beyond what the queries can see are one bucket."""
        sequences = buckets.point(buckets.SEQUENCES, dynamic["S"])
        tokens = max(buckets.point(buckets.TOKENS, dynamic["T"]), sequences)
        context = min(buckets.point(buckets.CONTEXTS, dynamic["max_context"]), _longest(problem, tokens))
        blocks = -(-context // problem.int("P"))
        return {"T": tokens, "S": sequences, "B": blocks, "pages": sequences * blocks, "max_context": context}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        """Ragged batches: the bucket's lowest corner, a random one inside, its point; decoding stays decoding. Where a
        window ends the contexts' buckets, the last one is at a context beyond the point."""
        axes, page = workload.axes, workload.problem.int("P")
        decode = axes["T"] == axes["S"]
        point, windowed = self.bucket(workload.problem, axes), bool(workload.problem.int("window"))
        contexts = _spread(buckets.CONTEXTS, point["max_context"] if windowed else axes["max_context"], seed)
        if windowed and point["max_context"] == _longest(workload.problem, point["T"]):
            contexts[-1] += random.Random(f"{seed} beyond").randrange(1, 2 * buckets.CONTEXTS[0])
        made = []
        for tokens, sequences, context in zip(_spread(buckets.TOKENS, axes["T"], seed),
                                              _spread(buckets.SEQUENCES, axes["S"], seed), contexts, strict=True):
            t = sequences if decode else max(tokens, sequences)
            context = max(context, -(-t // sequences))
            blocks = -(-context // page)
            enough = blocks + sequences - 1 + -(-(t - 1) // page) + (sequences - 1) * blocks // 3
            made.append(Workload.of(workload.problem, workload.count, workload.phase, T=t, S=sequences, B=blocks + 1,
                                    pages=enough + 1, max_context=context))
        return made


def _attended(context: float, queries: float, window: int) -> float:
    """Positions per query of a sequence, the causal mask deducted: of the last ``queries`` positions of ``context``."""
    if not window or context <= window:
        return max(context - (queries - 1) / 2, 1)
    rising = max(window - max(context - queries + 1, 1), 0)  # queries that do not see a whole window yet
    return window - rising * (rising + 1) / 2 / queries


def _longest(problem: Problem, tokens: int) -> int:
    """The last point of contexts that is a bucket of its own."""
    window = problem.int("window")
    return buckets.point(buckets.CONTEXTS, window + tokens) if window else buckets.CONTEXTS[-1]


def _spread(points: Sequence[int], value: int, seed: int) -> list[int]:
    """The lowest value of the bucket, a random one inside, its point."""
    values = [v for v in buckets.inside(points, value, seed) if v <= points[-1] or v == value]
    return [values[0], random.Random(f"{seed} {value}").choice(values), values[-1]]


@dataclass(frozen=True, eq=False)
class _Part:
    """Some consecutive queries of one sequence: rows first..last-1 of q, and k, v as float64 of the positions that they
    see together; ``seen`` says which of these each one sees."""

    first: int
    last: int
    seen: np.ndarray  # bool [queries, positions]
    k: np.ndarray  # [Hkv, positions, D]
    v: np.ndarray


def _parts(inputs: Arrays, p: AttentionProblem) -> Iterator[_Part]:
    import numpy as np

    for s, context in enumerate(inputs["context"].tolist()):
        start, stop = (int(x) for x in inputs["query_start"][s:s + 2])
        if stop == start:
            continue
        begin = p.first_seen(context - (stop - start)) // p.page * p.page
        pages = inputs["block_table"][s, begin // p.page:-(-context // p.page)]
        k, v = p.widened(inputs, pages)
        k, v = (part.reshape(p.kv_heads, -1, p.d)[:, :context - begin]
                for part in (k.transpose(1, 0, 3, 2), v.transpose(1, 0, 2, 3)))
        for first in range(start, stop, _QUERIES_AT_ONCE):
            last = min(first + _QUERIES_AT_ONCE, stop)
            own = np.arange(first, last)[:, None] - stop + context  # positions of the queries
            low = p.first_seen(int(own[0, 0]))
            j = np.arange(low, own[-1, 0] + 1)
            seen = (j <= own) & (j > own - p.window) if p.window else j <= own
            here = slice(low - begin, low - begin + len(j))
            yield _Part(first, last, seen, k[:, here], v[:, here])


def _attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float,
            sinks: np.ndarray | None, scaled: bool) -> Bound:
    """q [queries, heads of the group, D] over k, v [positions, D], of which ``seen`` [queries, positions] says who sees
    which; ``sinks`` [heads of the group]; ``scaled``: k and v are integers times scales. Reference and bound, shaped as
    q."""
    import numpy as np

    queries = q.reshape(-1, q.shape[-1])
    if not (np.isfinite(k).all() and np.isfinite(v).all() and np.isfinite(q).all()) or (
            sinks is not None and not (sinks < np.inf).all()):
        return _attend_nonfinite(q, k, v, seen, scale, sinks, scaled)
    seen = seen.repeat(q.shape[1], axis=0)
    scores = np.where(seen, scale * (queries @ k.T), -np.inf)
    size = abs(scale) * (np.abs(queries) @ np.abs(k).T)
    if sinks is not None:
        column = np.tile(sinks, len(q))[:, None]
        scores, seen = np.hstack([scores, column]), np.hstack([seen, column > -np.inf])
        size, v = np.hstack([size, np.zeros_like(column)]), np.vstack([v, np.zeros(v.shape[1])])
    below = scores - scores.max(axis=1, keepdims=True)
    weights = np.exp(below)
    weights /= weights.sum(axis=1, keepdims=True)
    out = weights @ v
    more = 2 * U if scaled else 0.0
    moved = weights * ((numerics.sum_error(q.shape[-1]) + more) * size + 4 * U * np.where(seen, -below, 0)
                       + 16 * U + more)
    squares = moved * moved
    # sum_j squares_j (|v_j| + |out|)^2, expanded
    spread = squares @ (v * v) + 2 * np.abs(out) * (squares @ np.abs(v))
    spread += out * out * squares.sum(axis=1, keepdims=True)
    count = seen.sum(axis=1, keepdims=True)
    bound = np.sqrt(spread) + numerics.sum_error(count) * (weights @ np.abs(v) + np.abs(out))
    bound += (1 if sinks is None else 2) * numerics.underflow(count * ((129 if scaled else 1) + np.abs(v).max()))
    return Bound(out.reshape(q.shape), bound.reshape(q.shape))


def _attend_nonfinite(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float,
                      sinks: np.ndarray | None, scaled: bool) -> Bound:
    """As ``_attend`` where something is not finite: query by query over what each one sees, so that zero times NaN of a
    position behind the mask plays no part; components that are finite are held to the bound of the finite parts."""
    import numpy as np

    whole = [np.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0) for part in (q, k, v)]
    without = None if sinks is None else np.where(sinks < np.inf, sinks, 0.0)
    finite = _attend(whole[0], whole[1], whole[2], seen, scale, without, scaled)
    exact = np.array(finite.reference)
    with np.errstate(invalid="ignore"):
        for i, mine in enumerate(seen):
            keys, values = k[mine], v[mine]
            scores = scale * (q[i] @ keys.T)
            if sinks is not None:
                scores, values = np.hstack([scores, sinks[:, None]]), np.vstack([values, np.zeros(v.shape[1])])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out = weights @ values / weights.sum(axis=1, keepdims=True)
            exact[i] = np.where(np.isfinite(out), exact[i], out)
    return Bound(exact, finite.bound)
