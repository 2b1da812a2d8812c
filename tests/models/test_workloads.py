from __future__ import annotations

from dataclasses import replace

import pytest

from kforge.core.errors import KforgeError
from kforge.core.workload import Phase
from kforge.models.graph import CallKind, StepOptions, step_calls
from kforge.models.roles import Matrix, Vector, WeightRef, roles_of
from kforge.models.synth_plan import FileFormat, SynthPlan, plan
from kforge.models.workloads import modes, workloads
from kforge.operators import get

ONE_B, EIGHT_B_MIXED = plan("llama-3.2-1b", "q4_0"), plan("llama-3.1-8b", "q4_k_m")
QWEN2, QWEN3 = plan("qwen2.5-0.5b", "q8_0"), plan("qwen3-0.6b", "q4_k_m")
QWEN3_MOE, GPT_OSS = plan("qwen3-30b-a3b", "q4_k_m"), plan("gpt-oss-20b", "mxfp4_moe")


def kinds(model, layer):
    return [c.kind for c in step_calls(model) if c.layer == layer]


def test_a_layer_is_eight_calls_when_formats_agree():
    assert kinds(ONE_B, 0) == [CallKind.ATTN_NORM, CallKind.QKV, CallKind.ROPE, CallKind.ATTENTION, CallKind.O,
                               CallKind.FFN_NORM, CallKind.GATE_UP, CallKind.DOWN]
    labels = [c.label for c in step_calls(ONE_B)]
    assert labels[:3] == ["embed", "layers.0.attn_norm", "layers.0.qkv"]
    assert labels[-4:] == ["gather", "final_norm", "head", "argmax"]


def test_matrices_of_different_formats_are_called_apart():
    split, fused = kinds(EIGHT_B_MIXED, 0), kinds(EIGHT_B_MIXED, 4)
    assert split[1:4] == [CallKind.Q, CallKind.K, CallKind.V] and fused[1] is CallKind.QKV


def test_gate_and_up_of_different_formats_need_a_silu():
    class Odd(SynthPlan):
        def format(self, role, layer=None):
            return super().format(Matrix.HEAD if role is Matrix.UP else role, layer)

    assert kinds(Odd(ONE_B.config, ONE_B.file_format), 0)[-4:] == [
        CallKind.GATE, CallKind.UP, CallKind.SILU, CallKind.DOWN]


@pytest.mark.parametrize("model", [ONE_B, EIGHT_B_MIXED, plan("tiny-llama-test", "bf16"), QWEN2, QWEN3, QWEN3_MOE,
                                   GPT_OSS])
def test_every_tensor_of_the_model_is_used_once(model):
    used = [ref for call in step_calls(model) for ref in (*call.weights, *call.biases)]
    if model.config.tied_head:
        assert used.count(WeightRef(Matrix.EMBED)) == 2
        used.reverse()
        used.remove(WeightRef(Matrix.EMBED))
    assert sorted(map(str, used)) == sorted(map(str, roles_of(model.config)))


def test_biases_follow_their_matrices():
    model = SynthPlan(replace(ONE_B.config, qkv_bias=True, o_bias=True), FileFormat.BF16)
    qkv = next(c for c in step_calls(model) if c.kind is CallKind.QKV)
    o = next(c for c in step_calls(model) if c.kind is CallKind.O)
    assert [b.role for b in qkv.biases] == [Vector.Q_BIAS, Vector.K_BIAS, Vector.V_BIAS]
    assert qkv.problem["bias"] == o.problem["bias"] == 1 and o.biases[0].role is Vector.O_BIAS


def test_qwen2_adds_biases_and_turns_halves():
    calls = {c.kind: c for c in step_calls(QWEN2)}
    assert calls[CallKind.QKV].problem.key == "linear(K=896,N=1152,act=a8,bias=1,epilogue=none,rows=32,weight=q8_0)"
    assert calls[CallKind.O].problem["bias"] == 0
    assert calls[CallKind.ROPE].problem.key == "rope_kv_write(D=64,Hkv=2,Hq=14,P=64,kv=f16,style=neox)"


def test_qwen3_normalises_heads_where_it_rotates_them():
    calls = [c for c in step_calls(QWEN3) if c.layer == 1]
    rope = next(c for c in calls if c.kind is CallKind.ROPE)
    assert rope.problem.key == "qk_norm_rope_kv_write(D=128,Hkv=8,Hq=16,P=64,kv=f16,style=neox)"
    assert rope.weights == (WeightRef(Vector.Q_NORM, 1), WeightRef(Vector.K_NORM, 1))
    assert next(c for c in calls if c.kind is CallKind.O).problem["K"] == 2048, "heads are wider than the model"
    row = next(r for r in workloads(QWEN3, batch=(8,), context=(500,), prefill=0) if r.kind is CallKind.ROPE)
    assert (row.workload.axes, row.workload.count) == ({"T": 8, "pages": 64, "positions": 512}, 28)


def test_experts_take_the_place_of_the_feed_forward_network():
    calls = [c for c in step_calls(QWEN3_MOE) if c.layer == 1]
    assert [c.kind for c in calls][-6:] == [CallKind.FFN_NORM, CallKind.ROUTER, CallKind.ROUTE,
                                            CallKind.EXPERT_GATE_UP, CallKind.EXPERT_DOWN, CallKind.COMBINE]
    router, route, gate_up, down, combine = (c.problem.key for c in calls[-5:])
    assert router == "linear(K=2048,N=128,act=f32,bias=0,epilogue=none,rows=32,weight=f32)"
    assert route == "moe_route(E=128,k=8,style=chosen)" and combine == "moe_combine(H=2048,k=8)"
    assert gate_up == ("moe_linear(E=128,K=2048,N=1536,act=a8,bias=0,epilogue=silu_gate,input=token,k=8,rows=32,"
                       "weight=q4_k)")
    assert down == "moe_linear(E=128,K=768,N=2048,act=a8,bias=0,epilogue=none,input=slot,k=8,rows=32,weight=q6_k)"
    assert next(r for r in workloads(QWEN3_MOE, batch=(8,), context=(500,), prefill=0)
                if r.kind is CallKind.EXPERT_DOWN).workload.axes == {"T": 8}


def test_gpt_oss_has_windows_in_turn_and_sinks_and_biases_everywhere():
    first, second = ({c.kind: c for c in step_calls(GPT_OSS) if c.layer == layer} for layer in (0, 1))
    assert first[CallKind.ATTENTION].problem.key == "paged_attention(D=64,Hkv=8,Hq=64,P=64,kv=f16,sinks=1,window=128)"
    assert second[CallKind.ATTENTION].problem.key == "paged_attention(D=64,Hkv=8,Hq=64,P=64,kv=f16,sinks=1)"
    assert second[CallKind.ATTENTION].weights == (WeightRef(Vector.SINKS, 1),)
    gate_up = first[CallKind.EXPERT_GATE_UP]
    assert gate_up.problem.key == ("moe_linear(E=32,K=2880,N=5760,act=a8,bias=1,epilogue=swiglu_oai,input=token,k=4,"
                                   "rows=32,weight=mxfp4)")
    assert [b.role for b in gate_up.biases] == [Vector.EXPERT_GATE_BIAS, Vector.EXPERT_UP_BIAS]
    with_bias = (CallKind.QKV, CallKind.O, CallKind.ROUTER, CallKind.EXPERT_DOWN)
    assert {first[kind].problem["bias"] for kind in with_bias} == {1}


def test_gates_of_another_format_than_ups_are_refused():
    class Odd(SynthPlan):
        def format(self, role, layer=None):
            return super().format(Matrix.HEAD if role is Matrix.EXPERT_UP else role, layer)

    with pytest.raises(KforgeError, match="gate and up"):
        step_calls(Odd(QWEN3_MOE.config, QWEN3_MOE.file_format))


def test_problems_say_shape_format_and_activations():
    calls = {c.kind: c.problem for c in step_calls(ONE_B, StepOptions(kv="f16", page=32, rows=64))}
    assert calls[CallKind.GATE_UP].key == (
        "linear(K=2048,N=16384,act=a8,bias=0,epilogue=silu_gate,rows=64,weight=q4_0)")
    assert calls[CallKind.QKV]["N"] == 2048 + 2 * 512
    assert calls[CallKind.HEAD]["weight"] == calls[CallKind.EMBED]["weight"] == "q6_k"
    assert calls[CallKind.ATTENTION]["kv"] == "f16" and calls[CallKind.ROPE]["P"] == 32
    floats = {c.kind: c.problem for c in step_calls(plan("llama-3.2-1b", "bf16"))}
    assert floats[CallKind.DOWN]["act"] == "f32", "float weights take float activations"
    assert {c.problem["act"] for c in step_calls(ONE_B, StepOptions(act="f32")) if c.problem.operator == "linear"} == {
        "f32"}


@pytest.mark.parametrize("model", [ONE_B, EIGHT_B_MIXED, QWEN2, QWEN3, QWEN3_MOE, GPT_OSS])
def test_static_and_dynamic_axes_are_those_of_the_operators(model):
    for row in workloads(model):
        operator = get(row.workload.problem.operator)
        assert set(row.workload.problem.attributes) == set(operator.static_axes)
        assert set(row.workload.axes) == set(operator.dynamic_axes)


def test_counts_add_up_to_the_calls_of_a_step():
    rows = workloads(EIGHT_B_MIXED, batch=(1, 4), context=(512, 4096), prefill=256)
    calls = len(step_calls(EIGHT_B_MIXED))
    for mode in modes((1, 4), (512, 4096), 256):
        assert sum(r.workload.count for r in rows if r.mode == mode) == calls
    assert {r.workload.phase for r in rows} == {Phase.DECODE, Phase.PREFILL}


def test_axes_of_decode_and_prefill():
    rows = workloads(ONE_B, batch=(8,), context=(500,), prefill=128)
    axes = {(r.mode.phase, r.kind): r.workload.axes for r in rows}
    assert axes[Phase.DECODE, CallKind.QKV] == {"M": 8}
    assert axes[Phase.DECODE, CallKind.ATTENTION] == {"T": 8, "S": 8, "B": 8, "pages": 64, "max_context": 500}
    assert axes[Phase.PREFILL, CallKind.DOWN] == {"M": 128}
    assert axes[Phase.PREFILL, CallKind.HEAD] == {"M": 1}, "a prefill chunk wants one row of logits"
    assert axes[Phase.PREFILL, CallKind.GATHER] == {"R": 1, "T": 128}
    assert axes[Phase.PREFILL, CallKind.ATTENTION]["S"] == 1


def test_what_a_model_cannot_hold_is_refused():
    with pytest.raises(KforgeError, match="131072"):
        workloads(ONE_B, context=(200_000,))
    with pytest.raises(KforgeError, match="at least 1"):
        workloads(ONE_B, batch=(0,))
