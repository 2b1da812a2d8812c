"""Attention kernels that are wrong in one way, and honest ones: positions, windows, sinks, scales, common pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bench.alterations import (
    TOO_LARGE,
    Arrays,
    F,
    Kernel,
    Subject,
    altered,
    fast_exp,
    on,
    same,
    specified,
    to_bf16,
)
from kforge.core.workload import Problem, Workload
from kforge.operators import Operator
from kforge.operators.kv_cache import KvProblem


def _attention(exp: Callable[[np.ndarray], np.ndarray], p_type: Callable[[np.ndarray], np.ndarray] = same,
               longer: int = 0) -> Kernel:
    """softmax(q k^T) v in float32, in one pass over all positions, with a window that is ``longer`` than it should."""

    def kernel(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        p = w.problem
        heads, kv_heads, d = p.int("Hq"), p.int("Hkv"), p.int("D")
        window = p.int("window") + longer
        sinks = given.get("sinks", np.empty(0, F)).reshape(kv_heads, heads // kv_heads, p.int("sinks"))
        nothing = np.zeros((p.int("sinks"), d), F)
        k_cache, v_cache = (part.astype(F) for part in KvProblem.of(p).widened(given))
        q = given["q"].reshape(-1, kv_heads, heads // kv_heads, d)
        out = np.empty_like(q)
        for s, length in enumerate(given["context"]):
            first, last = given["query_start"][s:s + 2]
            j = np.arange(length)
            page, slot = given["block_table"][s][j // p.int("P")], j % p.int("P")
            k, v = k_cache[page, :, :, slot], v_cache[page, :, slot]
            for t in range(first, last):
                seen = length - (last - t) + 1
                low = max(seen - window, 0) if window else 0
                for g in range(kv_heads):
                    scores = (q[t, g] @ k[low:seen, g].T) * F(op.given_scalars(w, given)[0])
                    scores, values = np.hstack([scores, sinks[g]]), np.vstack([v[low:seen, g], nothing])
                    weights = p_type(exp(scores - scores.max(axis=1, keepdims=True)))
                    out[t, g] = (weights @ values) / weights.sum(axis=1, keepdims=True)
        return {"out": out.reshape(given["q"].shape)}

    return kernel


def _position(change: str) -> Kernel:
    """One position of the longest sequence: its value is another's (stale), or it is not there (dropped)."""

    def kernel(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
        p, window = w.problem.int("P"), w.problem.int("window")
        s = int(given["context"].argmax())
        length = int(given["context"][s])
        queries = int(given["query_start"][s + 1] - given["query_start"][s])
        low = max(length - queries - window + 1, 0) if window else 0
        among = max(length - queries + 1 - low, 1)
        at, other = (low + int(j) for j in rng.choice(among, 2, replace=among < 2))
        v = given["v_cache"].copy()
        page = given["block_table"][s]
        v[page[at // p], :, at % p] = 0 if change == "dropped" else v[page[other // p], :, other % p]
        return {"v_cache": v}

    return on(kernel)


def _shorter(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
    """The newest position is not yet there for those who read."""
    context = given["context"] - (given["context"] > np.diff(given["query_start"]))
    return {"context": context.astype(np.int32)}


def _rotated_heads(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
    return {n: np.ascontiguousarray(np.roll(given[n], 1, axis=1)) for n in ("k_cache", "v_cache")}


def _plain(t: int, s: int) -> Subject:
    problem = Problem.of("paged_attention", Hq=4, Hkv=2, D=64, P=32, kv="f16")
    wrong = {"one stale KV entry": _position("stale"), "one position dropped": _position("dropped"),
             "newest position missing": on(_shorter), "heads rotated": on(_rotated_heads), "times 1.001": TOO_LARGE,
             "scale off by 1e-3": altered("q", lambda q: q * F(1.001)), "exp off by 1e-3": _attention(fast_exp),
             "weights in bf16": _attention(np.exp, to_bf16),
             "NaN taken for 0": on(lambda w, given, rng: {n: np.where(np.isnan(given[n]), np.float16(0), given[n])
                                                          for n in ("k_cache", "v_cache")}),
             "denormals flushed": altered("v_cache", lambda v: np.where(np.abs(v) < 2.0**-14, np.float16(0), v)),
             "right for positive inputs": altered("v_cache", np.abs)}
    work = Workload.of(problem, T=t, S=s, B=16, pages=16 * s, max_context=512)
    return Subject(work, {"specification": specified, "one pass": _attention(np.exp)}, wrong)


def _window_and_sinks(t: int, s: int) -> Subject:
    problem = Problem.of("paged_attention", Hq=4, Hkv=2, D=64, P=32, kv="f16", window=100, sinks=1)
    wrong = {"window one too long": _attention(np.exp, longer=1), "window one too short": _attention(np.exp, longer=-1),
             "window ignored": _attention(np.exp, longer=1 << 20),
             "sinks ignored": altered("sinks", lambda x: np.full_like(x, -np.inf)),
             "sinks taken for 0": altered("sinks", np.zeros_like),
             "sinks scaled": altered("sinks", lambda x: x * F(0.125)),
             "sinks of the next head": altered("sinks", lambda x: np.roll(x, 1)),
             "NaN among sinks ignored": altered("sinks", lambda x: np.where(np.isnan(x), -F(np.inf), x)),
             "sinks right below 20": altered("sinks", lambda x: np.minimum(x, F(20))),
             "one position dropped": _position("dropped"), "weights in bf16": _attention(np.exp, to_bf16)}
    work = Workload.of(problem, T=t, S=s, B=16, pages=16 * s, max_context=512)
    return Subject(work, {"specification": specified, "one pass": _attention(np.exp)}, wrong)


def _scaled(t: int, s: int) -> Subject:
    problem = Problem.of("paged_attention", Hq=4, Hkv=2, D=64, P=32, kv="i8")
    wrong = {f"scale of {part} {what}": altered(f"{part}_scale", change) for part in "kv" for what, change in (
        ("off by 1e-3", lambda x: x * F(1.001)), ("of the next position", lambda x: np.roll(x, 1, axis=2)),
        ("of the next head", lambda x: np.roll(x, 1, axis=1)), ("ignored", np.ones_like),
        ("in bf16", to_bf16))}
    wrong |= {"scales exchanged": on(lambda w, given, rng: {"k_scale": given["v_scale"], "v_scale": given["k_scale"]}),
              "unsigned": altered("k_cache", lambda x: x & np.int8(127)), "one position dropped": _position("dropped"),
              "newest position missing": on(_shorter), "weights in bf16": _attention(np.exp, to_bf16),
              "exp off by 1e-3": _attention(fast_exp)}
    work = Workload.of(problem, T=t, S=s, B=16, pages=16 * s, max_context=512)
    return Subject(work, {"specification": specified, "one pass": _attention(np.exp)}, wrong)


def _first_page_decides(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
    """Rows of the block table are taken for equal where their first pages are."""
    table = given["block_table"]
    first = (table[:, :1] == table[:, 0]).argmax(axis=1)
    return {"block_table": np.where((table >= 0) & (table[first] >= 0), table[first], table)}


def _chunk_too_many(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
    """A sequence that begins with some of an earlier one's pages is taken to have the next 256 positions, too."""
    table, out = given["block_table"], given["block_table"].copy()
    for s in range(1, len(table)):
        common = np.cumprod(table[s] == table[:s], axis=1).sum(axis=1)
        giver, n = int(common.argmax()), int(common.max())
        here = slice(n, n + 256 // w.problem.int("P") if n else n)
        out[s, here] = np.where((table[s, here] >= 0) & (table[giver, here] >= 0), table[giver, here], table[s, here])
    return {"block_table": out}


def _common_pages() -> Subject:
    problem = Problem.of("paged_attention", Hq=4, Hkv=2, D=64, P=32, kv="f16")
    wrong = {"rows with equal first pages taken for equal": on(_first_page_decides),
             "a chunk too many taken for common": on(_chunk_too_many), "newest position missing": on(_shorter)}
    work = Workload.of(problem, T=8, S=8, B=16, pages=8 * 16, max_context=512)
    return Subject(work, {"specification": specified, "one pass": _attention(np.exp)}, wrong)


def subjects() -> dict[str, Subject]:
    return {
        "paged_attention, decode": _plain(1, 1),
        "paged_attention, prefill": _plain(16, 2),
        "paged_attention, window and sinks, decode": _window_and_sinks(1, 1),
        "paged_attention, window and sinks, prefill": _window_and_sinks(16, 2),
        "paged_attention, common pages": _common_pages(),
        "paged_attention, i8, decode": _scaled(1, 1),
        "paged_attention, i8, prefill": _scaled(16, 2),
    }
