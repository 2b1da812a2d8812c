"""Kernels that are wrong in one way, and honest ones, of every operator: what the checker is measured with.

Each is a function of the operator, the workload, its inputs and a random generator, and gives the outputs. Wrong
ones are the order specification on tampered inputs, or float32 arithmetic written here with the mistake in it. All are
held against the bound, the weaker of the two gates: an *exact* kernel may not differ in a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bench import attention_mistakes
from bench.alterations import (
    TOO_LARGE,
    Arrays,
    F,
    Kernel,
    Subject,
    after,
    altered,
    dropped,
    fast_exp,
    flushed,
    input_mistakes,
    on,
    same,
    specified,
    to_bf16,
    to_f16,
)
from kforge.core.dtypes import WeightFormat
from kforge.core.workload import Problem, Workload
from kforge.operators import Operator, get, layouts
from kforge.operators.experts import Grouping, grouped
from kforge.operators.numerics import quantize_a8

# linear -------------------------------------------------------------------------------------------------------------


def _weight(w: Workload, given: Arrays) -> np.ndarray:
    p = w.problem
    layout = layouts.panel_layout(p.int("rows"))
    return layouts.unpack(given["w"], WeightFormat(p.str("weight")), p.int("N"), p.int("K"), layout).dequantize()


def _activations(w: Workload, given: Arrays) -> np.ndarray:
    return quantize_a8(given["x"]).exact().astype(F) if w.problem.str("act") == "a8" else given["x"]


def _multiplied(rounded: Callable[[np.ndarray], np.ndarray], chunk: int, values: Callable[[np.ndarray], np.ndarray]
                ) -> Kernel:
    """Products of ``values`` of both sides, added ``chunk`` terms at a time, ``rounded`` after each addition."""

    def kernel(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        x, weight = values(_activations(w, given)), values(_weight(w, given))
        out = np.zeros((len(x), len(weight)), F)
        for k in range(0, x.shape[1], chunk):
            out = rounded(out + x[:, k:k + chunk] @ weight[:, k:k + chunk].T)
        return {"out": out}

    return kernel


def _linear(weight: str, act: str, m: int) -> Subject:
    problem = Problem.of("linear", K=2048, N=48, weight=weight, act=act, epilogue="none", bias=0, rows=16)
    honest = {"specification": specified, "one accumulator": _multiplied(same, 1, same),
              "blocks of 64": _multiplied(same, 64, same)}
    wrong = {"one term in K dropped": dropped("x"), "times 1.001": TOO_LARGE,
             "accumulated in bf16": _multiplied(to_bf16, 32, same), "accumulated in f16": _multiplied(to_f16, 32, same),
             "a tail of 16 in K left out": altered("x", lambda x: np.where(np.arange(x.shape[1]) < 2032, x, F(0)))}
    wrong |= input_mistakes("x")
    if act == "a8":  # groups below 1e-30 are zeros by declaration, and quantised values forget small neighbours
        wrong.pop("denormals flushed")
    else:
        wrong["operands rounded to bf16"] = _multiplied(same, 64, to_bf16) if weight == "q8_0" else _multiplied(
            same, 64, lambda v: v if v.shape[0] == 48 else to_bf16(v))
    return Subject(Workload.of(problem, M=m), honest, wrong)


# the others ---------------------------------------------------------------------------------------------------------


def _rms(eps: bool = True, digits: int = 24, skip: int = 0) -> Kernel:
    def kernel(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        x = given["x"]
        square = (x * x)[:, skip:].cumsum(axis=1, dtype=F)[:, -1:] / F(x.shape[1])
        r = 1 / np.sqrt(square + F(op.given_scalars(w, given)[0] if eps else 0))
        return {"out": x * (np.round(r * 2**digits) / 2**digits if digits < 24 else r) * given["weight"]}

    return kernel


def _silu(exp: Callable[[np.ndarray], np.ndarray]) -> Kernel:
    def kernel(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        gate, up = np.split(given["gate_up"], 2, axis=1)
        return {"out": gate * (1 / (1 + exp(-gate))) * up}

    return kernel


def _moved(name: str, by: int) -> Kernel:
    return on(lambda w, given, rng: {name: np.maximum(given[name] + by, 0).astype(np.int32)})


def _one_row(name: str) -> Kernel:
    """One entry of an index is its neighbour's."""

    def change(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
        index = given[name].copy()
        at = int(rng.integers(0, len(index)))
        index[at] = max(index[at] - 1, 0) if index[at] else 1
        return {name: index}

    return on(change)


def _truncated(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    """bf16 without rounding."""
    p = w.problem
    out = dict(op.spec(w, given))
    heads = given["qkv"].reshape(len(given["qkv"]), -1, p.int("D"))[:, p.int("Hq") + p.int("Hkv"):]
    v = out["v_cache"].copy()
    for t, slot in enumerate(given["slot"].tolist()):
        if slot >= 0:
            v[slot // p.int("P"), :, slot % p.int("P")] = (heads[t].view(np.uint32) >> 16).astype(np.uint16)
    return out | {"v_cache": v}


def _heads_normed(eps: bool = True, skip: int = 0, together: bool = False) -> Kernel:
    """The norms of q and k in float32, one sum a head (or one for all heads of a token), then ``rope_kv_write``."""

    def kernel(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        p = w.problem
        counts, d = [p.int("Hq"), p.int("Hkv")], p.int("D")
        qkv = given["qkv"].reshape(len(given["qkv"]), -1, d).copy()
        x = qkv[:, :sum(counts)]
        square = (x * x)[..., skip:].cumsum(axis=2, dtype=F)[..., -1:] / F(d)
        if together:
            square = square.mean(axis=1, keepdims=True)
        r = 1 / np.sqrt(square + F(op.given_scalars(w, given)[0] if eps else 0))
        x[...] = x * r * np.repeat([given["q_norm"], given["k_norm"]], counts, axis=0)
        rope = Workload.of(Problem.of("rope_kv_write", **dict(p.static)), **w.axes)
        return get("rope_kv_write").spec(rope, {**given, "qkv": qkv.reshape(given["qkv"].shape)})

    return kernel


def _last_among_equals(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    x = np.where(np.isnan(given["logits"]), F(-np.inf), given["logits"])
    return {"out": (x.shape[1] - 1 - x[:, ::-1].argmax(axis=1)).astype(np.int32)}


def _nan_wins(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    return {"out": given["logits"].argmax(axis=1).astype(np.int32)}


# experts ------------------------------------------------------------------------------------------------------------


def _regrouped(change: Callable[[Workload, np.ndarray, np.random.Generator], np.ndarray]) -> Kernel:
    """Slots (int32, the expert of each) get other experts."""

    def kernel(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
        ids = change(w, Grouping(given["order"], given["expert_start"]).ids.copy(), rng)
        other = grouped(ids, w.problem.int("E"))
        return {"order": other.order, "expert_start": other.start}

    return on(kernel)


def _one_elsewhere(w: Workload, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    ids[rng.integers(0, len(ids))] += 1
    return ids % w.problem.int("E")


def _next_token(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
    """Rows of x by another slot's token."""
    return {"x": np.roll(given["x"], 1, axis=0)}


def _other_bias(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
    return {"bias": np.ascontiguousarray(np.roll(given["bias"], 1, axis=0))}


def _moe_linear() -> Subject:
    problem = Problem.of("moe_linear", E=6, k=2, input="token", K=256, N=64, weight="mxfp4", act="a8",
                         epilogue="swiglu_oai", bias=1, rows=32)
    wrong = {"one slot to its neighbour's expert": _regrouped(_one_elsewhere), "rows of another token": on(_next_token),
             "bias of another expert": on(_other_bias), "times 1.001": TOO_LARGE,
             "one term in K dropped": dropped("x")} | input_mistakes("x")
    for name in ("denormals flushed", "right above 1e-5"):  # hidden by the bias, and by what a8 declares
        wrong.pop(name)
    return Subject(Workload.of(problem, T=8), {"specification": specified}, wrong)


def _routed(order: Callable[[np.ndarray, np.ndarray], np.ndarray], weights: Callable[[np.ndarray], np.ndarray] = same
            ) -> Kernel:
    """Top k by this order of (logits, ids), a softmax over the chosen with the weights changed."""

    def kernel(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        e, k, logits = w.problem.int("E"), w.problem.int("k"), given["logits"]
        ids = np.stack([order(row, np.arange(e))[:k] for row in logits])
        chosen = np.take_along_axis(logits, ids, axis=1)
        p = np.exp(chosen - chosen[:, :1])
        slots = grouped(ids, e)
        return {"ids": ids.astype(np.int32), "weights": weights(p / p.sum(axis=1, keepdims=True)), "order": slots.order,
                "expert_start": slots.start}

    return kernel


def _rank(logits: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(logits), F(-np.inf), -logits)


def _unstable(op: Operator, w: Workload, given: Arrays, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
    """The slots of each expert descend."""
    out = dict(op.spec(w, given))
    parts = [part[::-1] for part in np.split(out["order"], out["expert_start"][1:-1])]
    return {**out, "order": np.concatenate(parts)}


def _moe_route() -> Subject:
    by_rank = _routed(lambda row, ids: np.lexsort((ids, _rank(row))))
    wrong = {
        "last among equals": _routed(lambda row, ids: np.lexsort((-ids, _rank(row)))),
        "NaN never chosen": _routed(lambda row, ids: np.lexsort((ids, np.where(np.isnan(row), F(np.inf), -row)))),
        "-0 below 0": _routed(lambda row, ids: np.lexsort((ids, np.signbit(row), _rank(row)))),
        "slots of an expert in another order": _unstable,
        "not normalised": _routed(lambda row, ids: np.lexsort((ids, _rank(row))), lambda p: p * F(0.99)),
        "exp off by 1e-3": after(lambda p: fast_exp(np.log(p)).astype(F), "weights"),
        "denormals flushed": altered("logits", flushed),
        "right for positive inputs": altered("logits", np.abs),
    }
    return Subject(Workload.of(Problem.of("moe_route", E=24, k=4, style="chosen"), T=8),
                   {"specification": specified, "sorted": by_rank}, wrong)


def _moe_combine() -> Subject:
    def one_expert_less(w: Workload, given: Arrays, rng: np.random.Generator) -> Arrays:
        x = given["x"].reshape(-1, w.problem.int("k"), w.problem.int("H")).copy()
        x[:, rng.integers(0, x.shape[1])] = 0
        return {"x": x.reshape(given["x"].shape)}

    wrong = {"one expert left out": on(one_expert_less), "rows of another token": on(_next_token),
             "weights of 1": altered("weights", np.ones_like), "times 1.001": TOO_LARGE,
             "residual left out": altered("out", np.zeros_like)} | input_mistakes("x")
    return Subject(Workload.of(Problem.of("moe_combine", H=128, k=4), T=8), {"specification": specified}, wrong)


def subjects() -> dict[str, Subject]:
    rope = Workload.of(Problem.of("rope_kv_write", Hq=4, Hkv=2, D=64, P=16, kv="bf16", style="neox"), T=8, pages=8,
                       positions=4096)
    table = Workload.of(Problem.of("embedding", V=512, H=256, weight="q4_k", rows=16), T=8)
    no_nan = altered("gate_up", lambda x: np.where(np.isnan(x), F(0), x))
    return {
        "linear f32, bf16 weights": _linear("bf16", "f32", 1),
        "linear f32, q4_1": _linear("q4_1", "f32", 8),
        "linear a8, q4_0": _linear("q4_0", "a8", 1),
        "linear a8, q6_k": _linear("q6_k", "a8", 8),
        **attention_mistakes.subjects(),
        "rms_norm": Subject(
            Workload.of(Problem.of("rms_norm", H=2048, residual=0), T=8),
            {"specification": specified, "one sum": _rms()},
            {"eps left out": _rms(eps=False), "one term dropped": _rms(skip=1), "rsqrt to 12 bits": _rms(digits=12),
             "times 1.001": TOO_LARGE, **{k: v for k, v in input_mistakes("x").items() if k != "infinity clamped"}}),
        "silu_mul": Subject(
            Workload.of(Problem.of("silu_mul", I=512), T=8),
            {"specification": specified, "x sigmoid(x)": _silu(np.exp)},
            {"exp off by 1e-3": _silu(fast_exp), "times 1.001": TOO_LARGE, "NaN taken for 0": no_nan,
             "denormals flushed": after(flushed), "right for positive inputs": altered("gate_up", np.abs)}),
        "rope_kv_write, bf16": Subject(
            rope, {"specification": specified},
            {"a position further": _moved("position", -1), "one token to its neighbour's slot": _one_row("slot"),
             "times 1.001": after(lambda q: q * F(1.001), "q_out"), "bf16 truncated": _truncated,
             **{k: v for k, v in input_mistakes("qkv").items() if k != "infinity clamped"}}),
        "qk_norm_rope_kv_write": Subject(
            Workload.of(Problem.of("qk_norm_rope_kv_write", Hq=4, Hkv=2, D=128, P=16, kv="f32", style="neox"), T=8,
                        pages=8, positions=4096),
            {"specification": specified, "one sum": _heads_normed()},
            {"eps left out": _heads_normed(eps=False), "one term dropped": _heads_normed(skip=1),
             "one norm for all heads": _heads_normed(together=True), "a position further": _moved("position", -1),
             "norms swapped": on(lambda w, given, rng: {"q_norm": given["k_norm"], "k_norm": given["q_norm"]}),
             "times 1.001": after(lambda q: q * F(1.001), "q_out"),
             **{k: v for k, v in input_mistakes("qkv").items() if k != "infinity clamped"}}),
        "embedding, q4_k": Subject(
            table, {"specification": specified}, {"one row is its neighbour": _one_row("ids"), "times 1.001": TOO_LARGE,
                                                  "accumulated in bf16": after(to_bf16)}),
        "gather_rows": Subject(
            Workload.of(Problem.of("gather_rows", H=128), R=8, T=8), {"specification": specified},
            {"one row is its neighbour": _one_row("index"), "denormals flushed": altered("x", flushed),
             "NaN taken for 0": input_mistakes("x")["NaN taken for 0"]}),
        "argmax": Subject(
            Workload.of(Problem.of("argmax", V=4096), R=4), {"specification": specified},
            {"last among equals": _last_among_equals, "NaN wins": _nan_wins, "denormals flushed": altered(
                "logits", flushed), "starts at zero": altered("logits", lambda x: np.maximum(x, 0)),
             "last 8 left out": altered("logits", lambda x: np.where(np.arange(4096) < 4088, x, F(-np.inf)))}),
        "moe_route": _moe_route(),
        "moe_linear, mxfp4": _moe_linear(),
        "moe_combine": _moe_combine(),
    }
