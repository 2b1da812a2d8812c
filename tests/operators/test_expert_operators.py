"""Mixtures of experts: routing, the experts' products and their sum follow docs/architecture.md, token by token."""

import numpy as np
import pytest
from operator_problems import moe_combine, moe_linear, moe_route, ratio
from test_specifications import F, exp, fma, linear_by_the_document, tree

from kforge import operators
from kforge.core.dtypes import DType, WeightFormat
from kforge.core.workload import Problem, Workload
from kforge.operators import Distribution, experts, layouts
from kforge.operators.experts import Crowding, Grouping, grouped

EVERY = list(Distribution)


def case(workload, distribution=Distribution.NORMAL, seed=1):
    operator = operators.get(workload.problem.operator)
    return operator, operator.inputs(workload, seed, distribution)


def routed(logits, k, style="chosen"):
    inputs = {"logits": np.array(logits, np.float32)}
    t, e = inputs["logits"].shape
    workload, operator = moe_route(e, k, style, t), operators.get("moe_route")
    return operator.spec(workload, inputs), operator.reference(workload, inputs)


@pytest.mark.parametrize("style", ["chosen", "all"])
def test_routing_follows_the_document(style):
    workload = moe_route(37, 4, style, 12)
    for distribution in (Distribution.NORMAL, Distribution.HEAVY_TAIL, Distribution.EQUAL):
        operator, inputs = case(workload, distribution)
        got, logits = operator.spec(workload, inputs), inputs["logits"]
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :4]
        assert (got["ids"] == ids).all()
        chosen = np.take_along_axis(logits, ids, axis=1)
        p = exp(chosen - chosen[:, :1])
        total = np.zeros(12, F)
        if style == "chosen":
            for j in range(4):
                total += p[:, j]
        else:
            lanes = np.zeros((12, 16), F)
            for e in range(37):
                lanes[:, e % 16] += exp(logits[:, e] - chosen[:, 0])
            total = tree(lanes)
        assert got["weights"].tobytes() == (p / total[:, None]).tobytes()


def test_equal_logits_go_to_the_lowest_id_and_zeros_of_both_signs_are_equal():
    out, bounds = routed([[1, 5, 5, 2, 5], [-0.0, 0.0, -0.0, 0.0, -1], [-2, -3, -2, -np.inf, -np.inf]], 3)
    assert out["ids"].tolist() == [[1, 2, 4], [0, 1, 2], [0, 2, 1]]
    assert (bounds["ids"].reference == out["ids"]).all()


def test_a_nan_is_chosen_and_spoils_its_own_token_only():
    out, bounds = routed([[1, np.nan, 3, 2], [1, 2, 3, 4], [np.inf, 1, 2, 3], [-np.nan, np.nan, 1, 2]], 2)
    assert out["ids"].tolist() == [[1, 2], [3, 2], [0, 3], [0, 1]]
    assert np.isnan(out["weights"]).all(axis=1).tolist() == [True, False, True, True]
    assert np.isfinite(out["weights"][1]).all(), "its neighbours are as they were"
    assert (bounds["ids"].reference == out["ids"]).all()


@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_slots_are_grouped_by_expert_in_their_order(tokens):
    operator, inputs = case(moe_route(20, 3, "chosen", tokens))
    out = operator.spec(moe_route(20, 3, "chosen", tokens), inputs)
    flat, start = out["ids"].reshape(-1), out["expert_start"]
    assert sorted(out["order"].tolist()) == list(range(3 * tokens)) and start[0] == 0 and start[-1] == 3 * tokens
    for e in range(20):
        mine = out["order"][start[e]:start[e + 1]]
        assert (flat[mine] == e).all() and (np.diff(mine) > 0).all()
    assert (Grouping(out["order"], start).ids == flat).all()


def test_experts_without_tokens_and_one_with_all_of_them():
    logits = np.zeros((6, 8), np.float32)
    logits[:, 5] = 3
    out, _ = routed(logits, 1)
    assert out["expert_start"].tolist() == [0, 0, 0, 0, 0, 0, 6, 6, 6] and out["order"].tolist() == list(range(6))


def test_renormalised_parts_of_the_whole_softmax_are_the_softmax_of_the_chosen():
    logits = np.random.default_rng(3).standard_normal((50, 16))
    (chosen, _), (every, _) = routed(logits, 4), routed(logits, 4, "all")
    renormalised = every["weights"] / every["weights"].sum(axis=1, keepdims=True)
    assert np.allclose(chosen["weights"], renormalised, rtol=1e-6, atol=0)
    assert (every["weights"].sum(axis=1) < 0.999).any()


def test_a_token_is_routed_the_same_whatever_stands_beside_it():
    operator, inputs = case(moe_route(20, 4, "all", 9), Distribution.ROWS)
    together = operator.spec(moe_route(20, 4, "all", 9), inputs)
    for t in range(9):
        alone = operator.spec(moe_route(20, 4, "all", 1), {"logits": inputs["logits"][t:t + 1].copy()})
        for name in ("ids", "weights"):
            assert alone[name].tobytes() == together[name][t:t + 1].tobytes()


@pytest.mark.parametrize("distribution", EVERY)
def test_honest_routers_use_less_than_half_of_the_bound(distribution):
    for style in ("chosen", "all"):
        workload = moe_route(64, 6, style, 16)
        operator, inputs = case(workload, distribution)
        bound, logits = operator.reference(workload, inputs)["weights"], inputs["logits"]
        ids = operator.spec(workload, inputs)["ids"]
        chosen = np.take_along_axis(logits, ids, axis=1)
        with np.errstate(invalid="ignore"):
            terms = np.exp((logits if style == "all" else chosen) - chosen[:, :1])
            weights = np.exp(chosen - chosen[:, :1]) * (1 / terms.cumsum(axis=1, dtype=np.float32)[:, -1:])
        assert ratio(bound, weights, DType.F32) < 0.5
        if distribution is Distribution.NORMAL:
            assert ratio(bound, weights * F(1 + 1e-5), DType.F32) > 1


def swiglu(gate, up):
    """The clamped gate, by the document."""
    g = np.where(gate > 7, F(7), gate)
    u = np.where(up > 7, F(7), np.where(up < -7, F(-7), up))
    return (u + F(1)) * (g / (F(1) + exp(-(F(1.702) * g))))


def moe_by_the_document(workload, inputs):
    """Slot by slot, each as a ``linear`` of one token with its expert's matrix."""
    p, share = workload.problem, workload.problem.int("k") if workload.problem.str("input") == "token" else 1
    n, k, format = p.int("N"), p.int("K"), WeightFormat(p.str("weight"))
    gate_up = p.str("epilogue") != "none"
    layout = layouts.panel_layout(p.int("rows"), gate_up)
    ids = Grouping(inputs["order"], inputs["expert_start"]).ids
    plain = Problem.of("linear", K=k, N=n, weight=p.str("weight"), act=p.str("act"), epilogue="none",
                       bias=p.int("bias"), rows=p.int("rows"))
    out = []
    for slot, expert in enumerate(ids):
        weight = experts.matrix(inputs["w"], expert, format, n, k, layout)
        row = {"x": inputs["x"][slot // share][None],
               "w": layouts.pack(weight, layouts.panel_layout(p.int("rows")))}
        if "bias" in inputs:
            row["bias"] = inputs["bias"][expert]
        sums = linear_by_the_document(Workload.of(plain, M=1), row)[0]
        if p.str("epilogue") == "swiglu_oai":
            sums = swiglu(sums[:n // 2], sums[n // 2:])
        elif gate_up:
            silu = sums[:n // 2] / (F(1) + exp(-sums[:n // 2]))
            sums = silu * sums[n // 2:]
        out.append(sums)
    return np.array(out, F)


@pytest.mark.parametrize("workload", [moe_linear(t=3), moe_linear("mxfp4", "a8", "none", "slot", rows=16, t=3),
                                      moe_linear("q4_1", "a8", "silu_gate", bias=0, t=3),
                                      moe_linear("bf16", "f32", "swiglu_oai", t=3)], ids=lambda w: w.problem.key)
def test_experts_products_follow_the_document(workload):
    for distribution in (Distribution.NORMAL, Distribution.LARGE):
        operator, inputs = case(workload, distribution)
        assert operator.spec(workload, inputs)["out"].tobytes() == moe_by_the_document(workload, inputs).tobytes()


def test_inputs_have_every_kind_of_choice():
    """All tokens to the same experts, experts without tokens, few and many: in turn, but never in timed calls."""
    def count(seed, distribution):
        ids = experts.draw(np.random.default_rng(seed), 30, 12, 2, Crowding.of(seed, distribution))
        assert (ids[:, 0] != ids[:, 1]).all()
        return np.diff(grouped(ids, 12).start)

    counts = [count(seed, Distribution.MIXED) for seed in range(12)]
    assert all((count(seed, Distribution.NORMAL) > 0).sum() >= 9 for seed in range(20))
    assert any((c > 0).sum() == 2 and c.max() == 30 for c in counts), "all tokens to the same two"
    assert any((c > 0).sum() >= 10 for c in counts) and any((c[:3] > 0).all() and not c[3:].any() for c in counts)


def test_a_slot_is_what_it_is_alone():
    """Whatever other tokens there are, and where its row of x comes from."""
    workload = moe_linear(e=6, t=9, k=3)
    operator, inputs = case(workload, Distribution.ROWS)
    whole = operator.spec(workload, inputs)["out"]
    rows = np.array([26, 0, 13, 5])
    part = operator.part(workload, inputs, rows)
    assert part.workload.problem.str("input") == "slot" and part.workload.axes == {"T": 4}
    assert operator.spec(part.workload, part.inputs)["out"].tobytes() == whole[rows].tobytes()


def test_a_wrong_expert_shows_in_every_distribution():
    workload = moe_linear(e=6, t=9, k=3)
    for distribution in EVERY:
        operator, inputs = case(workload, distribution)
        ids = Grouping(inputs["order"], inputs["expert_start"]).ids.copy()
        ids[4] = (ids[4] + 1) % 6
        other = grouped(ids, 6)
        changed = {**inputs, "order": other.order, "expert_start": other.start}
        bound = operator.reference(workload, inputs)["out"]
        sure = np.isfinite(bound.reference[4]).all() and bound.reference[4].any()
        assert not sure or ratio(bound, operator.spec(workload, changed)["out"], DType.F32) > 1, distribution


@pytest.mark.parametrize("distribution", EVERY)
def test_honest_clamped_gates_use_less_than_half_of_the_bound(distribution):
    workload = moe_linear("bf16", "f32", "swiglu_oai", e=2, k=1, n=128, t=12)
    operator, inputs = case(workload, distribution)
    inputs = {**inputs, "x": inputs["x"] * F(4)}  # so that clamps are reached
    bound = operator.reference(workload, inputs)["out"]
    ids = Grouping(inputs["order"], inputs["expert_start"]).ids
    layout = layouts.panel_layout(32, True)
    weights = [experts.matrix(inputs["w"], e, WeightFormat.BF16, 128, 139, layout).dequantize() for e in range(2)]
    with np.errstate(all="ignore"):
        sums = np.stack([inputs["x"][s] @ weights[e].T + inputs["bias"][e] for s, e in enumerate(ids)])
        gate, up = np.split(sums, 2, axis=1)
        g, u = np.minimum(gate, F(7)), np.clip(up, F(-7), F(7))
        out = g * (1 / (1 + np.exp(F(-1.702) * g))) * (u + F(1))
    assert ratio(bound, out, DType.F32) < 0.5
    if distribution is Distribution.LARGE:
        with np.errstate(over="ignore"):
            unclamped = gate * (1 / (1 + np.exp(np.float64(-1.702) * gate))) * (up + F(1))
        assert ratio(bound, unclamped.astype(np.float32), DType.F32) > 1


def test_combining_follows_the_document():
    workload = moe_combine()
    for distribution in (Distribution.NORMAL, Distribution.MIXED):
        operator, inputs = case(workload, distribution)
        x, w = inputs["x"].reshape(6, 4, 83), inputs["weights"]
        acc = w[:, 0, None] * x[:, 0]
        for j in range(1, 4):
            acc = fma(w[:, j, None], x[:, j], acc)
        assert operator.spec(workload, inputs)["out"].tobytes() == (inputs["out"] + acc).tobytes()


def test_honest_sums_use_less_than_half_of_the_bound_and_a_dropped_expert_shows():
    workload = moe_combine(64, 8, 5)
    for distribution in EVERY:
        operator, inputs = case(workload, distribution)
        bound = operator.reference(workload, inputs)["out"]
        rows = inputs["x"].reshape(5, 8, 64)
        with np.errstate(all="ignore"):
            terms = rows * inputs["weights"][:, :, None]
            out = terms[:, ::-1].cumsum(axis=1, dtype=np.float32)[:, -1] + inputs["out"]
            assert ratio(bound, out, DType.F32) < 1  # one addition is granted in full
            if distribution in (Distribution.NORMAL, Distribution.TINY, Distribution.CANCEL, Distribution.ONE_HOT):
                less = inputs["out"] + terms[:, 1:].sum(axis=1)
                assert ratio(bound, less.astype(np.float32), DType.F32) > 1, distribution


@pytest.mark.parametrize("problem,said", [
    (Problem.of("moe_route", E=4, k=5, style="chosen"), "k of E"),
    (Problem.of("moe_route", E=4, k=2, style="top"), "chosen or all"),
    (Problem.of("moe_linear", E=4, k=2, input="rows", K=64, N=32, weight="mxfp4", act="a8", epilogue="none", bias=0,
                rows=16), "token or slot"),
    (Problem.of("moe_linear", E=4, k=2, input="slot", K=64, N=32, weight="bf16", act="a8", epilogue="none", bias=0,
                rows=16), "integers"),
    (Problem.of("moe_linear", E=4, k=2, input="slot", K=64, N=32, weight="mxfp4", act="a8", epilogue="residual", bias=0,
                rows=16), "swiglu_oai"),
])
def test_impossible_problems_are_told(problem, said):
    with pytest.raises(ValueError, match=said):
        operators.get(problem.operator).tensors(Workload.of(problem, T=2))


def test_a_call_costs_the_experts_that_its_tokens_choose():
    """GPT-OSS at batch 1 reads 4 of 32 experts, at 512 tokens all of them."""
    problem = Problem.of("moe_linear", E=32, k=4, input="token", K=2880, N=5760, weight="mxfp4", act="a8",
                         epilogue="swiglu_oai", bias=1, rows=32)
    operator, each = operators.get("moe_linear"), 2880 * 5760 * 17 // 32
    one, many = (operator.cost(Workload.of(problem, T=t)) for t in (1, 512))
    assert one.streamed_bytes == pytest.approx(4 * each) and many.streamed_bytes == pytest.approx(32 * each, rel=1e-3)
    assert dict(one.operations) == {"int8_dot": 2 * 4 * 5760 * 2880}
