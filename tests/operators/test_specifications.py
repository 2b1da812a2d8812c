"""The order specifications follow docs/architecture.md to the bit, and do not depend on the batch.

The document is written a second time here, in numpy: an FMA is a product and a sum in extended precision (64 bits or
more of significand) rounded to float32 once, ties decided by what the extended sum lost.
"""

import ctypes

import numpy as np
import pytest
from operator_problems import attention, embedding, linear, rms_norm, rope
from operators_cpp import open_probe, pointer

from kforge import operators
from kforge.core.dtypes import DType, WeightFormat
from kforge.core.workload import Problem, Workload
from kforge.operators import Distribution, layouts
from kforge.operators.numerics import bf16_activations, narrow, quantize_a8, widen

F = np.float32


def fma(a, b, c):
    wide = np.longdouble
    product, c = np.asarray(a, wide) * np.asarray(b, wide), np.asarray(c, wide)
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)  # what the sum has rounded away
    if not lost.any():
        return total.astype(F)
    # A sum half way between two floats, as products with small integers make them, goes to where the lost part lies.
    rounded = total.astype(F)
    other = total + (total - rounded)
    tie = (total != rounded) & (other.astype(F) == other) & (lost != 0)
    return np.where(tie, np.nextafter(total, np.copysign(wide(np.inf), lost)), total).astype(F)


def through(name, x):
    x = np.ascontiguousarray(x, F)
    out = np.empty_like(x)
    getattr(open_probe("math_probe"), name)(pointer(x), pointer(out), ctypes.c_int64(x.size))
    return out


def exp(x):
    return through("exp_scalar", x)


def silu(x):
    return through("silu_scalar", x)


def tree(lanes):
    """Sum of 16 lanes on the last axis: l and l+8, then +4, +2, +1."""
    for half in (8, 4, 2, 1):
        lanes = lanes[..., :half] + lanes[..., half:2 * half]
    return lanes[..., 0]


def case(workload, distribution=Distribution.NORMAL):
    operator = operators.get(workload.problem.operator)
    inputs = operator.inputs(workload, 1, distribution)
    return operator, inputs


def linear_by_the_document(workload, inputs):
    p = workload.problem
    gate_up = p.str("epilogue") == "silu_gate"
    weight = layouts.unpack(inputs["w"], WeightFormat(p.str("weight")), p.int("N"), p.int("K"),
                            layouts.panel_layout(p.int("rows"), gate_up))
    traits, x = weight.format.traits, inputs["x"]
    acc = np.zeros((x.shape[0], weight.n), F)
    if p.str("act") == "f32":
        w = weight.dequantize()
        for start in range(0, weight.k, 128):
            block = np.zeros_like(acc)
            for k in range(start, min(start + 128, weight.k)):
                block = fma(x[:, k, None], w[None, :, k], block)
            acc = acc + block if start else block
    elif p.str("act") == "bf16_dot":
        w, x = bf16_activations(weight.dequantize()), bf16_activations(x)
        for pair in range(0, weight.k, 2):
            for k in (pair + 1, pair):
                if k < weight.k:
                    wide = x[:, k, None].astype(np.float64) * w[None, :, k] + acc
                    acc = fma(x[:, k, None], w[None, :, k], acc)
                    acc = np.where(np.abs(wide) < 2.0**-126 - 2.0**-151, np.copysign(F(0), acc), acc)
    elif p.str("act") == "a8_token":
        a = quantize_a8(x, "a8_token")
        sums = a.q.astype(np.int64) @ weight.signed().astype(np.int64).T
        acc = sums.astype(F) * (weight.d[:, 0] * a.d)
    else:
        a, d_w = quantize_a8(x), weight.scales()
        for k in range(0, weight.k, traits.group):
            u = weight.signed()[:, k:k + traits.group].astype(np.int64)
            q, d_a = a.q[:, k:k + traits.group].astype(np.int64), a.d[:, k // 32, None]
            acc = fma((q @ u.T).astype(F), d_w[None, :, k // traits.group] * d_a, acc)
            if traits.has_min:
                acc = fma(weight.minima()[None, :, k // 32], d_a * q.sum(axis=1).astype(F)[:, None], acc)
    if "bias" in inputs:
        acc = acc + inputs["bias"]
    if "residual" in inputs:
        acc = inputs["residual"] + acc
    return silu(acc[:, :weight.n // 2]) * acc[:, weight.n // 2:] if gate_up else acc


@pytest.mark.parametrize("epilogue", ["none", "residual", "silu_gate"])
@pytest.mark.parametrize("weight,act", [(f.value, act) for f in WeightFormat for act in f.acts])
def test_linear_follows_the_document(weight, act, epilogue):
    workload = linear(weight, act, epilogue, bias=1, rows=32, n=70, m=3)
    for distribution in (Distribution.NORMAL, Distribution.HEAVY_TAIL, Distribution.ONE_HOT):
        operator, inputs = case(workload, distribution)
        assert operator.spec(workload, inputs)["out"].tobytes() == linear_by_the_document(workload, inputs).tobytes()


@pytest.mark.parametrize("weight,act", [("bf16", "f32"), ("bf16", "bf16_dot"), ("q4_1", "a8"), ("q6_k", "a8"),
                                        ("int8_channel", "a8_token"), ("int8_channel", "f32")])
@pytest.mark.parametrize("rows", [16, 64])
def test_linear_depends_neither_on_the_batch_nor_on_the_panel_height(weight, act, rows):
    many = linear(weight, act, m=6)
    operator, inputs = case(many)
    want = operator.spec(many, inputs)["out"]
    p = many.problem
    stored = layouts.unpack(inputs["w"], WeightFormat(weight), p.int("N"), p.int("K"), layouts.panel_layout(32))
    one = linear(weight, act, rows=rows, m=1)
    packed = layouts.pack(stored, layouts.panel_layout(rows))
    for m in range(6):
        alone = operator.spec(one, {"x": inputs["x"][m:m + 1].copy(), "w": packed})["out"]
        assert alone.tobytes() == want[m].tobytes()


@pytest.mark.parametrize("h", [576, 577, 15])
@pytest.mark.parametrize("residual", [0, 1])
def test_rms_norm_follows_the_document(residual, h):
    workload = rms_norm(residual, h)
    operator, inputs = case(workload, Distribution.HEAVY_TAIL)
    x = inputs["residual"] + inputs["x"] if residual else inputs["x"]
    lanes = np.zeros((x.shape[0], 16), F)
    for k in range(h):
        lanes[:, k % 16] = fma(x[:, k], x[:, k], lanes[:, k % 16])
    r = F(1) / np.sqrt(tree(lanes) / F(h) + F(operator.given_scalars(workload, inputs)[0]))
    got = operator.spec(workload, inputs)
    assert got["out"].tobytes() == (x * r[:, None] * inputs["weight"]).tobytes()
    assert not residual or got["residual"].tobytes() == x.tobytes()


def normed_by_the_document(workload, inputs):
    """qkv [T, 10, 64] with the heads of q (6) and of k (2) normalised."""
    x = inputs["qkv"].reshape(9, 10, 64)
    weight = np.repeat([inputs["q_norm"], inputs["k_norm"]], [6, 2], axis=0)
    lanes = np.zeros((9, 8, 16), F)
    for k in range(64):
        lanes[..., k % 16] = fma(x[:, :8, k], x[:, :8, k], lanes[..., k % 16])
    eps = operators.get(workload.problem.operator).given_scalars(workload, inputs)[0]
    r = F(1) / np.sqrt(tree(lanes) / F(64) + F(eps))
    return np.concatenate([x[:, :8] * r[..., None] * weight, x[:, 8:]], axis=1)


def quantised_by_the_document(x):
    """int8 [heads, D] and float32 scales [heads] of a position."""
    amax = np.abs(x).max(axis=1)
    inverse = np.where(amax >= F(1e-30), F(127) / np.maximum(amax, F(1e-30)), F(0))
    return np.rint(x * inverse[:, None]).astype(np.int8), amax / F(127)


@pytest.mark.parametrize("operator_name", ["rope_kv_write", "qk_norm_rope_kv_write"])
@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16", "i8"])
def test_rope_kv_write_follows_the_document(kv, style, operator_name):
    workload, dtype = rope(kv, style, operator_name), DType(kv)
    operator, inputs = case(workload, Distribution.HEAVY_TAIL)
    got = operator.spec(workload, inputs)
    k_cache, v_cache = inputs["k_cache"].copy(), inputs["v_cache"].copy()
    scales = {name: inputs[name].copy() for name in ("k_scale", "v_scale") if kv == "i8"}
    qkv = inputs["qkv"].reshape(9, 10, 64) if "q_norm" not in inputs else normed_by_the_document(workload, inputs)
    for t, heads in enumerate(qkv):
        c, s = (inputs[name][inputs["position"][t]] for name in ("cos", "sin"))
        pairs = heads.reshape(10, 2, 32) if style == "neox" else heads.reshape(10, 32, 2).transpose(0, 2, 1)
        a, b = pairs[:, 0], pairs[:, 1]
        turned = np.stack([fma(a, c, -(b * s)), fma(a, s, b * c)], axis=1)
        turned = turned.reshape(10, 64) if style == "neox" else turned.transpose(0, 2, 1).reshape(10, 64)
        assert got["q_out"][t].tobytes() == turned[:6].tobytes()
        if (slot := inputs["slot"][t]) >= 0:
            k, v = turned[6:8], heads[8:]
            if kv == "i8":
                (k, scales["k_scale"][slot // 16, :, slot % 16]) = quantised_by_the_document(k)
                (v, scales["v_scale"][slot // 16, :, slot % 16]) = quantised_by_the_document(v)
            else:
                k, v = narrow(k, dtype), narrow(v, dtype)
            k_cache[slot // 16, :, :, slot % 16], v_cache[slot // 16, :, slot % 16] = k, v
    assert all(got[name].tobytes() == scale.tobytes() for name, scale in scales.items())
    assert got["k_cache"].tobytes() == k_cache.tobytes() and got["v_cache"].tobytes() == v_cache.tobytes()


def attention_by_the_document(q, k, v, scale, low=0, sink=None, scales=None):
    """One query head over positions ``low`` and above of k, v [positions, D], which ``scales`` [2][positions] belong
    to where they are integers."""
    merged = None
    for start in range(low // 256 * 256, len(k), 256):
        begin = max(low, start)
        keys, values = k[begin:start + 256], v[begin:start + 256]
        dot = np.zeros(len(keys), F)
        for d in range(len(q)):
            dot = fma(q[d], keys[:, d], dot)
        here = slice(begin, start + 256)
        s = scale * dot if scales is None else (scale * scales[0][here]) * dot
        m = s.max()
        p = exp(s - m)
        weights = p if scales is None else p * scales[1][here]
        lanes, o = np.zeros(16, F), np.zeros(len(q), F)
        for j in range(len(keys)):
            lanes[(begin + j) % 16] += p[j]
            o = fma(weights[j], values[j], o)
        total = tree(lanes)
        if merged is None:
            merged = (m, total, o)
            continue
        top = max(merged[0], m)
        a, b = exp(np.array([merged[0] - top, m - top], F))
        merged = (top, fma(merged[1], a, total * b), fma(merged[2], a, o * b))
    if sink is not None:
        top = max(merged[0], sink)
        a, b = exp(np.array([merged[0] - top, sink - top], F))
        merged = (top, fma(merged[1], a, b), merged[2] * a)
    return merged[2] / merged[1]


@pytest.mark.parametrize(("kv", "window", "sinks"), [("f32", 0, 0), ("bf16", 0, 0), ("f16", 0, 0), ("f32", 100, 1),
                                                     ("bf16", 300, 0), ("f16", 0, 1), ("i8", 0, 0), ("i8", 100, 1)])
def test_paged_attention_follows_the_document(kv, window, sinks):
    workload = attention(kv, 4, 2, 32, 16, window, sinks, T=7, S=3, B=40, pages=90, max_context=600)
    for distribution in (Distribution.NORMAL, Distribution.LARGE, Distribution.HEAVY_TAIL)[:2 + sinks]:
        operator, inputs = case(workload, distribution)
        out = operator.spec(workload, inputs)["out"].reshape(7, 4, 32)
        scale = F(operator.given_scalars(workload, inputs)[0])
        k_cache, v_cache = (widen(inputs[name], DType(kv)).astype(F) for name in ("k_cache", "v_cache"))
        for s, context in enumerate(inputs["context"]):
            j = np.arange(context)
            page = inputs["block_table"][s][j // 16]
            k, v = k_cache[page, :, :, j % 16], v_cache[page, :, j % 16]
            scales = [inputs[name][page, :, j % 16] for name in ("k_scale", "v_scale") if kv == "i8"]
            first, last = inputs["query_start"][s:s + 2]
            for t in range(first, last):
                seen = context - (last - first) + t - first + 1
                for h in range(4):
                    q = inputs["q"].reshape(7, 4, 32)[t, h]
                    low, sink = max(seen - window, 0) if window else 0, inputs["sinks"][h] if sinks else None
                    own = [part[:seen, h // 2] for part in scales] or None
                    want = attention_by_the_document(q, k[:seen, h // 2], v[:seen, h // 2], scale, low, sink, own)
                    assert out[t, h].tobytes() == want.tobytes()


@pytest.mark.parametrize("more", [{}, {"window": 40, "sinks": 1}, {"window": 3}])
def test_a_prefill_chunk_equals_decoding_token_by_token(more):
    chunk = attention(**more, T=5, S=1, B=10, pages=10, max_context=300)
    operator, inputs = case(chunk)
    want = operator.spec(chunk, inputs)["out"]
    for i in range(5):
        one = attention(**more, T=1, S=1, B=10, pages=10, max_context=300)
        step = inputs | {"q": inputs["q"][i:i + 1].copy(), "query_start": np.array([0, 1], np.int32),
                         "context": inputs["context"] - 4 + i}
        step["context"] = step["context"].astype(np.int32)
        assert operator.spec(one, step)["out"].tobytes() == want[i].tobytes()


def test_a_window_as_long_as_the_context_and_sinks_of_minus_infinity_change_no_bit():
    plain = attention("bf16")
    operator, inputs = case(plain)
    want = operator.spec(plain, inputs)["out"].tobytes()
    wide, short = attention("bf16", window=601, sinks=1), attention("bf16", window=100)
    none = inputs | {"sinks": np.full(6, -np.inf, F)}
    assert operator.spec(wide, none)["out"].tobytes() == want
    assert operator.spec(wide, inputs | {"sinks": np.zeros(6, F)})["out"].tobytes() != want
    assert operator.spec(short, inputs)["out"].tobytes() != want


@pytest.mark.parametrize("format", list(WeightFormat))
def test_embedding_is_the_dequantised_row(format):
    workload = embedding(format.value)
    operator, inputs = case(workload)
    p = workload.problem
    table = layouts.unpack(inputs["table"], format, p.int("V"), p.int("H"), layouts.panel_layout(16)).dequantize()
    # Without a minimum the FMA with m = +0 makes -0 a +0.
    rows = table[inputs["ids"]] + F(0) if not format.traits.has_min else table[inputs["ids"]]
    assert operator.spec(workload, inputs)["out"].tobytes() == rows.tobytes()


def test_silu_mul_follows_the_document():
    workload = Workload.of(Problem.of("silu_mul", I=333), T=5)
    operator, inputs = case(workload, Distribution.HEAVY_TAIL)
    gate, up = np.split(inputs["gate_up"], 2, axis=1)
    assert operator.spec(workload, inputs)["out"].tobytes() == (silu(gate) * up).tobytes()


def test_argmax_takes_the_lowest_index_among_equals():
    workload = Workload.of(Problem.of("argmax", V=50), R=2)
    logits = np.zeros((2, 50), F)
    logits[0, [7, 30]] = 5
    logits[1] = -1
    operator = operators.get("argmax")
    assert operator.spec(workload, {"logits": logits})["out"].tolist() == [7, 0]
    assert operator.reference(workload, {"logits": logits})["out"].reference.tolist() == [7, 0]
