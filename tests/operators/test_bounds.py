"""The bound lets honest float32 kernels pass with room to spare, and catches a single mistake."""

import warnings

import numpy as np
import pytest
from operator_problems import attention, linear, ratio, rms_norm, rope

from kforge import operators
from kforge.core.dtypes import DType, WeightFormat
from kforge.operators import Distribution, layouts
from kforge.operators.numerics import bf16_activations, narrow, numpy_dtype, quantize_a8, widen

EVERY = list(Distribution)
_SHOWS_NO_POSITION = (Distribution.EQUAL, Distribution.NAN, Distribution.INFINITE)


def case(workload, distribution=Distribution.NORMAL, seed=1):
    operator = operators.get(workload.problem.operator)
    inputs = operator.inputs(workload, seed, distribution)
    return operator, inputs, operator.reference(workload, inputs)


def sequential(x, w):
    """One float32 accumulator per output, products rounded, k ascending: the least accurate honest order."""
    acc = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for k in range(x.shape[1]):
        acc += x[:, k, None] * w[None, :, k]
    return acc


def weight_of(workload, inputs):
    p = workload.problem
    layout = layouts.panel_layout(p.int("rows"), p.str("epilogue") == "silu_gate")
    return layouts.unpack(inputs["w"], WeightFormat(p.str("weight")), p.int("N"), p.int("K"), layout)


@pytest.mark.parametrize("distribution", EVERY)
@pytest.mark.parametrize("weight", ["bf16", "q4_1", "q6_k"])
def test_honest_linear_kernels_use_less_than_half_of_the_bound(weight, distribution):
    workload = linear(weight, "f32", k=2048, n=256, m=16)
    _, inputs, reference = case(workload, distribution)
    w = weight_of(workload, inputs).dequantize()
    for out in (inputs["x"] @ w.T, sequential(inputs["x"], w)):
        assert ratio(reference["out"], out, DType.F32) < 0.5


@pytest.mark.parametrize("distribution", EVERY)
@pytest.mark.parametrize("weight", ["q8_0", "q4_1", "q5_k", "q6_k", "mxfp4"])
def test_honest_a8_kernels_use_less_than_half_of_the_bound(weight, distribution):
    """Groups added in float32 without FMAs, in descending order."""
    workload = linear(weight, "a8", k=2048, n=256, m=16)
    _, inputs, reference = case(workload, distribution)
    stored, a = weight_of(workload, inputs), quantize_a8(inputs["x"])
    group = stored.format.traits.group
    u = stored.signed().reshape(stored.n, -1, group).astype(np.int64)
    q = a.q.reshape(16, -1, group).astype(np.int64)
    d_a = a.d.repeat(32 // group, axis=1)
    acc = np.zeros((16, stored.n), np.float32)
    for g in reversed(range(u.shape[1])):
        acc += (q[:, g] @ u[:, g].T).astype(np.float32) * (d_a[:, g, None] * stored.scales()[None, :, g])
        if stored.format.traits.has_min:
            acc += stored.minima()[None, :, g] * (d_a[:, g] * q[:, g].sum(axis=1).astype(np.float32))[:, None]
    assert ratio(reference["out"], acc, DType.F32) < 0.5


@pytest.mark.parametrize("distribution", EVERY)
def test_honest_a8_token_kernels_use_less_than_half_of_the_bound(distribution):
    """Scales applied one after the other, and K in two halves that are added as floats."""
    workload = linear("int8_channel", "a8_token", k=2048, n=256, m=16)
    _, inputs, reference = case(workload, distribution)
    stored, a = weight_of(workload, inputs), quantize_a8(inputs["x"], "a8_token")
    u, q = stored.signed().astype(np.int64), a.q.astype(np.int64)
    acc = (q[:, :1024] @ u[:, :1024].T).astype(np.float32) + (q[:, 1024:] @ u[:, 1024:].T).astype(np.float32)
    assert ratio(reference["out"], acc * a.d * stored.d[:, 0], DType.F32) < 0.5


@pytest.mark.parametrize("distribution", EVERY)
def test_honest_bf16_kernels_use_less_than_half_of_the_bound(distribution):
    """In float32 as numpy has it, and in plain ascending order without pairs."""
    workload = linear("bf16", "bf16_dot", k=2048, n=256, m=16)
    _, inputs, reference = case(workload, distribution)
    w, x = bf16_activations(weight_of(workload, inputs).dequantize()), bf16_activations(inputs["x"])
    for out in (x @ w.T, sequential(x, w)):
        assert ratio(reference["out"], out, DType.F32) < 0.5


@pytest.mark.parametrize("act,weight", [("f32", "bf16"), ("bf16_dot", "bf16"), ("f32", "q4_0"), ("a8", "q4_0"),
                                        ("a8", "q4_k"), ("a8_token", "int8_channel")])
def test_every_single_dropped_term_of_linear_is_caught(act, weight):
    """Whichever k a kernel forgets, some output of the NORMAL and of the CANCEL case shows it, by a factor of two."""
    workload = linear(weight, act, k=2048, n=64, m=2)
    for distribution in (Distribution.NORMAL, Distribution.CANCEL):
        _, inputs, reference = case(workload, distribution)
        w = weight_of(workload, inputs).dequantize().astype(np.float64)
        x = bf16_activations(inputs["x"]) if act == "bf16_dot" else inputs["x"]
        x = quantize_a8(x, act).exact() if act.startswith("a8") else x.astype(np.float64)
        shown = (np.abs(x[:, None] * w[None]) > 2 * reference["out"].bound[:, :, None]).any(axis=(0, 1))
        assert (shown | (x == 0).all(axis=0)).all(), distribution


def test_a_wrong_output_of_linear_is_caught_in_every_distribution():
    workload = linear("q4_0", "a8", "residual", 1, m=8)
    for distribution in EVERY:
        operator, inputs, reference = case(workload, distribution)
        out = operator.spec(workload, inputs)["out"]
        out[3, 17] = out[3, 18]
        assert ratio(reference["out"], out, DType.F32) > 1, distribution


@pytest.mark.parametrize("left_out", ["bias", "residual"])
def test_a_forgotten_epilogue_is_caught(left_out):
    workload = linear("q8_0", "a8", "residual", 1)
    for distribution in EVERY:
        operator, inputs, reference = case(workload, distribution)
        out = operator.spec(workload, inputs | {left_out: np.zeros_like(inputs[left_out])})["out"]
        assert ratio(reference["out"], out, DType.F32) > 1, distribution


@pytest.mark.parametrize("distribution", EVERY)
def test_rms_norm_bound(distribution):
    workload = rms_norm(1)
    operator, inputs, reference = case(workload, distribution)
    h, eps = inputs["x"] + inputs["residual"], operator.given_scalars(workload, inputs)[0]
    square = (h * h).cumsum(axis=1, dtype=np.float32)[:, -1:]
    out = h / np.sqrt(square / np.float32(h.shape[1]) + np.float32(eps)) * inputs["weight"]
    assert ratio(reference["out"], out, DType.F32) < 0.5
    assert ratio(reference["residual"], h, DType.F32) <= 1
    if distribution is Distribution.TINY:
        eps_part = eps / (h.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
        without_eps = operator.spec(workload, inputs)["out"] * np.sqrt(1 + eps_part)
        assert ratio(reference["out"], without_eps.astype(np.float32), DType.F32) > 1
    if distribution is Distribution.NORMAL:
        short = (square - h[:, -1:] ** 2) / np.float32(h.shape[1])
        dropped = h / np.sqrt(short + np.float32(eps)) * inputs["weight"]
        assert ratio(reference["out"], dropped, DType.F32) > 1


def plain_attention(workload, inputs):
    """softmax(q k^T) v in float32 in one pass, for any number of positions."""
    p = workload.problem
    window = p.int("window")
    heads, kv_heads, d, dtype = p.int("Hq"), p.int("Hkv"), p.int("D"), DType(p.str("kv"))
    scale = operators.get("paged_attention").given_scalars(workload, inputs)[0]
    out = np.empty_like(inputs["q"]).reshape(-1, heads, d)
    k_cache, v_cache = (widen(inputs[name], dtype).astype(np.float32) for name in ("k_cache", "v_cache"))
    if dtype is DType.I8:
        k_cache *= inputs["k_scale"][:, :, None]
        v_cache *= inputs["v_scale"][..., None]
    for s, length in enumerate(inputs["context"]):
        first, last = inputs["query_start"][s:s + 2]
        j = np.arange(length)
        page, slot = inputs["block_table"][s][j // p.int("P")], j % p.int("P")
        k, v = k_cache[page, :, :, slot], v_cache[page, :, slot]
        for t in range(first, last):
            seen = length - (last - first) + t - first + 1
            here = slice(max(seen - window, 0) if window else 0, seen)
            for h in range(heads):
                g = h // (heads // kv_heads)
                q = inputs["q"].reshape(-1, heads, d)[t, h]
                scores = (k[here, g] @ q) * np.float32(scale)
                if p.int("sinks"):
                    scores = np.append(scores, inputs["sinks"][h])
                weights = np.exp(scores - scores.max())
                out[t, h] = (weights[:here.stop - here.start] @ v[here, g]) / weights.sum()
    return out.reshape(inputs["q"].shape)


@pytest.mark.parametrize("distribution", EVERY)
@pytest.mark.parametrize(("kv", "window", "sinks"), [("f32", 0, 0), ("bf16", 0, 0), ("f32", 0, 1), ("bf16", 100, 1),
                                                     ("i8", 0, 0), ("i8", 100, 1)])
def test_honest_attention_uses_less_than_half_of_the_bound(kv, window, sinks, distribution):
    workload = attention(kv, window=window, sinks=sinks)
    _, inputs, reference = case(workload, distribution)
    assert ratio(reference["out"], plain_attention(workload, inputs), DType.F32) < 0.5


def test_every_single_dropped_position_of_attention_is_caught():
    """Decoding at 1000 positions: the value of any one position replaced by zero shows."""
    workload = attention(hq=2, hkv=1, T=1, S=1, B=32, pages=32, max_context=1000)
    operator, inputs, reference = case(workload)
    for j in range(1000):
        v = inputs["v_cache"].copy()
        v[inputs["block_table"][0, j // 32], :, j % 32] = 0
        assert ratio(reference["out"], operator.spec(workload, inputs | {"v_cache": v})["out"], DType.F32) > 1, j


def test_a_dropped_position_shows_at_a_context_where_normal_values_hide_it():
    """At 32,768 positions one of them is a rounding error of normal values. ONE_HOT gives it a component of v in which
    few others stand."""
    workload = attention("f32", 1, 1, T=1, S=1, B=1024, pages=1024, max_context=32768)

    def shown(distribution):
        _, inputs, reference = case(workload, distribution)
        page, offset = inputs["block_table"][0].repeat(32), np.tile(np.arange(32), 1024)
        k, v = (inputs[name].astype(np.float64) for name in ("k_cache", "v_cache"))
        k, v = k[page, 0, :, offset], v[page, 0, offset]
        p = np.exp(k @ inputs["q"][0].astype(np.float64) / 8)
        p /= p.sum()
        without = (p[:, None] * np.abs(v - p @ v)) / (1 - p[:, None])
        return (without > reference["out"].bound).any(axis=1).mean()

    assert shown(Distribution.ONE_HOT) > 0.999 > shown(Distribution.NORMAL)


@pytest.mark.parametrize("distribution", [d for d in EVERY if d not in _SHOWS_NO_POSITION])
def test_reading_beyond_or_short_of_the_context_is_caught(distribution):
    """One position too many reads poison, one too few loses a term, and a stale block table reads another page. (A
    mean over equal values does not show it.)"""
    workload = attention()
    operator, inputs, reference = case(workload, distribution)

    def changed_ratio(**changed):
        return ratio(reference["out"], operator.spec(workload, inputs | changed)["out"], DType.F32)

    assert changed_ratio() < 0.5
    longest = int(inputs["context"].argmax())
    for change in (1, -1):
        context = inputs["context"].copy()
        context[longest] += change
        assert changed_ratio(context=context) > 1, change
    table = inputs["block_table"].copy()
    table[longest, :2] = table[longest, 1::-1]
    both = inputs["block_table"].copy()
    both[longest, 1] = both[longest, 0]
    assert changed_ratio(block_table=both) > 1
    swapped = operator.spec(workload, inputs | {"block_table": table})["out"]
    assert np.isfinite(swapped).all()  # order alone does not matter: attention is a sum


def test_unused_slots_hold_poison_and_unused_table_entries_are_minus_one():
    workload = attention("bf16")
    _, inputs, _ = case(workload)
    used = np.zeros((*inputs["v_cache"].shape[:1], 32), bool)
    for pages, length in zip(inputs["block_table"], inputs["context"], strict=True):
        assert (pages[-(-length // 32):] == -1).all() and (pages[:-(-length // 32)] >= 0).all()
        for j in range(length):
            assert not used[pages[j // 32], j % 32], "two positions share a slot"
            used[pages[j // 32], j % 32] = True
    assert np.isnan(widen(inputs["v_cache"], DType.BF16)).any(axis=(1, 3)).tolist() == (~used).tolist()
    assert np.isnan(widen(inputs["k_cache"], DType.BF16)).any(axis=(1, 2)).tolist() == (~used).tolist()
    assert inputs["context"].max() == workload.axes["max_context"]
    assert len(set(inputs["context"].tolist())) > 1, "contexts are ragged"


@pytest.mark.parametrize("distribution", [d for d in EVERY if d not in _SHOWS_NO_POSITION])
def test_a_window_off_by_one_is_caught(distribution):
    """One position too few loses a term; one too many reads, for the first query of a sequence, what lies in front."""
    workload = attention(window=100)
    operator, inputs, reference = case(workload, distribution)
    whole = inputs | {"block_table": np.where(inputs["block_table"] < 0, 0, inputs["block_table"]).astype(np.int32)}
    for by in (-1, 0, 1):
        out = operator.spec(attention(window=100 + by), whole)["out"]
        assert (ratio(reference["out"], out, DType.F32) > 1) == (by != 0), by


@pytest.mark.parametrize("distribution", EVERY)
def test_ignored_and_exchanged_sinks_are_caught(distribution):
    workload = attention(window=100, sinks=1)
    operator, inputs, reference = case(workload, distribution)
    for wrong in (np.full(6, -np.inf), np.roll(inputs["sinks"], 1), inputs["sinks"] * 0.125, np.zeros(6)):
        out = operator.spec(workload, inputs | {"sinks": wrong.astype(np.float32)})["out"]
        assert ratio(reference["out"], out, DType.F32) > 1


def test_sinks_that_are_not_finite_reach_their_own_head_only():
    """Minus infinity is no sink, NaN and plus infinity make NaN; as large as it may be it leaves nothing, not NaN."""
    workload = attention("bf16", window=100, sinks=1)
    operator, inputs, _ = case(workload)
    values = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1], np.float32)
    given = inputs | {"sinks": values}
    reference, out = operator.reference(workload, given)["out"], operator.spec(workload, given)["out"]
    plain = operator.spec(attention("bf16", window=100), inputs)["out"].reshape(20, 6, 64)
    assert ratio(reference, out, DType.F32) < 0.5
    for heads in (reference.reference.reshape(20, 6, 64), out.reshape(20, 6, 64)):
        assert np.isnan(heads[:, :2]).all() and np.isfinite(heads[:, 2:]).all() and not heads[:, 3].any()
        assert np.allclose(heads[:, [2, 4]], plain[:, [2, 4]], rtol=1e-4, atol=1e-6)


def test_what_lies_in_front_of_a_window_is_poison_and_its_pages_may_be_gone():
    workload = attention("f32", window=100)
    operator, inputs, _ = case(workload)
    gone = 0
    for s, length in enumerate(inputs["context"].tolist()):
        queries = int(inputs["query_start"][s + 1] - inputs["query_start"][s])
        low = max(length - max(queries, 1) - 100 + 1, 0)
        pages = inputs["block_table"][s]
        gone += int((pages[:low // 32] < 0).sum())
        assert (pages[low // 32:-(-length // 32)] >= 0).all()
        for j in range(length):
            if pages[j // 32] >= 0:
                values = inputs["v_cache"][pages[j // 32], :, j % 32]
                assert np.isnan(values).all() if j < low else np.isfinite(values).all()
    assert gone
    assert np.isfinite(operator.spec(workload, inputs)["out"]).all()


@pytest.mark.parametrize("kv", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("style", ["norm", "neox"])
def test_rope_mistakes_are_caught(kv, style):
    workload = rope(kv, style)
    operator, inputs, reference = case(workload)
    dtype = DType(kv)
    good = operator.spec(workload, inputs)

    def fails(name, array, dtype=dtype):
        return ratio(reference[name], array, dtype) > 1

    assert (inputs["slot"] < 0).any()
    assert fails("k_cache", inputs["k_cache"]) and fails("v_cache", inputs["v_cache"]), "nothing written"
    written_anyway = operator.spec(workload, inputs | {"slot": np.where(inputs["slot"] < 0, 5, inputs["slot"])})
    assert fails("k_cache", written_anyway["k_cache"]) or 5 in inputs["slot"]
    shifted = operator.spec(workload, inputs | {"position": np.maximum(inputs["position"] - 1, 0)})
    assert fails("q_out", shifted["q_out"], DType.F32) and fails("k_cache", shifted["k_cache"])
    assert not fails("v_cache", shifted["v_cache"])
    if dtype is DType.BF16:  # truncated instead of rounded
        wide = widen(good["v_cache"], dtype)
        exact = reference["v_cache"].reference.astype(np.float32)
        truncated = (exact.view(np.uint32) >> 16).astype(np.uint16)
        assert fails("v_cache", truncated) and (narrow(wide.astype(np.float32), dtype) == good["v_cache"]).all()


def normed_and_rotated(inputs, eps, skip=0):
    """q in float32: a head's squares (but the first ``skip``) summed one after the other, a rotation without FMAs."""
    x = inputs["qkv"].reshape(9, 10, 64)[:, :6]
    c, s = (inputs[name][inputs["position"]][:, None] for name in ("cos", "sin"))
    with np.errstate(invalid="ignore"):
        square = (x * x)[..., skip:].cumsum(axis=2, dtype=np.float32)[..., -1:]
        a, b = np.split(x / np.sqrt(square / np.float32(64) + np.float32(eps)) * inputs["q_norm"], 2, axis=2)
        return np.concatenate([a * c - b * s, a * s + b * c], axis=2).reshape(9, -1)


@pytest.mark.parametrize("distribution", EVERY)
def test_honest_norms_of_heads_use_less_than_half_of_the_bound(distribution):
    workload = rope("f32", "neox", "qk_norm_rope_kv_write")
    operator, inputs, reference = case(workload, distribution)
    out = normed_and_rotated(inputs, operator.given_scalars(workload, inputs)[0])
    assert ratio(reference["q_out"], out, DType.F32) < 0.5


@pytest.mark.parametrize("distribution", [Distribution.NORMAL, Distribution.TINY, Distribution.HEAVY_TAIL])
def test_mistakes_in_the_norms_of_heads_are_caught(distribution):
    workload = rope("f32", "neox", "qk_norm_rope_kv_write")
    operator, inputs, reference = case(workload, distribution)
    eps = operator.given_scalars(workload, inputs)[0]
    swapped = operator.spec(workload, inputs | {"q_norm": inputs["k_norm"], "k_norm": inputs["q_norm"]})
    left_out = operators.get("rope_kv_write").spec(rope("f32", "neox"), inputs)
    for wrong in (swapped, left_out):
        assert ratio(reference["q_out"], wrong["q_out"], DType.F32) > 1
        assert ratio(reference["k_cache"], wrong["k_cache"], DType.F32) > 1
        assert ratio(reference["v_cache"], wrong["v_cache"], DType.F32) == 0
    if distribution is Distribution.TINY:
        assert ratio(reference["q_out"], normed_and_rotated(inputs, 0.0), DType.F32) > 1
    else:
        assert ratio(reference["q_out"], normed_and_rotated(inputs, eps, skip=1), DType.F32) > 1


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_bits_that_nobody_meant_are_widened_without_a_warning(dtype):
    bits = {DType.F32: np.uint32(0x7F800001), DType.F16: np.uint16(0x7C01), DType.BF16: np.uint16(0x7F81)}[dtype]
    array = np.full(8, bits).view(numpy_dtype(dtype))  # signalling NaNs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(widen(array, dtype)).all()
