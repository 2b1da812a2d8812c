"""Qwen2, Qwen3 and Qwen3-MoE in both kinds of file: the configuration, tensors by role, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from gguf_writing import as_gguf

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.config import Experts, Family, RopeStyle
from kforge.models.graph import CallKind, step_calls
from kforge.models.roles import Matrix, Vector, roles_of
from kforge.models.synth import synth
from kforge.models.synth_plan import plan

SETTINGS = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=128,
                num_hidden_layers=2, max_position_embeddings=256, rms_norm_eps=1e-6, eos_token_id=[2, 3],
                rope_parameters={"rope_type": "default", "rope_theta": 1e6})
OF_EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True)
QWEN2, QWEN3, QWEN3_MOE = Family.QWEN2, Family.QWEN3, Family.QWEN3_MOE


def made(family: Family) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    if family is QWEN2:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SETTINGS, tie_word_embeddings=True))
    elif family is QWEN3_MOE:
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SETTINGS, **OF_EXPERTS, head_dim=32))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SETTINGS, head_dim=32))
    with torch.no_grad():
        for values in model.parameters():
            values.copy_(torch.randn(values.shape))
    return model


def values_of(model, ref) -> np.ndarray:
    stored = model.tensor(ref.role, ref.layer)
    return stored if isinstance(stored, np.ndarray) else stored.dequantize()


@pytest.mark.parametrize("family", [QWEN2, QWEN3, QWEN3_MOE])
def test_both_kinds_of_file_hold_the_same_model(tmp_path, family):
    model = made(family)
    model.save_pretrained(tmp_path)
    folder, file = load(tmp_path), load(as_gguf(model, tmp_path / "x.gguf"))
    unnamed = [replace(m.config, name="", eos_id=None, stop_ids=(), rms_eps=float(np.float32(m.config.rms_eps)))
               for m in (folder, file)]
    assert unnamed[0] == unnamed[1]
    for ref in roles_of(folder.config):
        np.testing.assert_array_equal(values_of(folder, ref), values_of(file, ref), err_msg=str(ref))
    assert [c.problem for c in step_calls(folder)] == [c.problem for c in step_calls(file)]
    assert folder.config.stop_ids == (2, 3)


def test_qwen2_has_biases_of_q_k_and_v(tmp_path):
    saved = made(QWEN2)
    saved.save_pretrained(tmp_path)
    model, attention = load(tmp_path), saved.model.layers[1].self_attn
    c = model.config
    assert (c.family, c.head_dim, c.qkv_bias, c.o_bias, c.qk_norm, c.tied_head) == (QWEN2, 16, True, False, False, True)
    assert c.rope.style is RopeStyle.NEOX and c.rope.theta == 1e6
    for role, theirs in ((Vector.Q_BIAS, attention.q_proj), (Vector.K_BIAS, attention.k_proj),
                         (Vector.V_BIAS, attention.v_proj)):
        np.testing.assert_array_equal(model.tensor(role, 1), theirs.bias.detach().numpy())


def test_qwen3_has_norms_of_q_and_k_and_a_head_dim_of_its_own(tmp_path):
    saved = made(QWEN3)
    saved.save_pretrained(tmp_path)
    model, attention = load(tmp_path), saved.model.layers[1].self_attn
    c = model.config
    assert (c.family, c.head_dim, c.q_size, c.hidden, c.qkv_bias, c.qk_norm) == (QWEN3, 32, 128, 64, False, True)
    for role, theirs in ((Vector.Q_NORM, attention.q_norm), (Vector.K_NORM, attention.k_norm)):
        np.testing.assert_array_equal(model.tensor(role, 1), theirs.weight.detach().numpy())


def test_qwen3_moe_has_experts_one_behind_the_other(tmp_path):
    saved = made(QWEN3_MOE)
    saved.save_pretrained(tmp_path)
    model, theirs = load(tmp_path), saved.model.layers[1].mlp
    c = model.config
    assert (c.experts, c.intermediate, c.qk_norm) == (Experts(6, 2), 32, True)
    gate_up = theirs.experts.gate_up_proj.detach().numpy()
    for role, wanted in ((Matrix.EXPERT_GATE, gate_up[:, :32]), (Matrix.EXPERT_UP, gate_up[:, 32:]),
                         (Matrix.EXPERT_DOWN, theirs.experts.down_proj.detach().numpy()),
                         (Matrix.ROUTER, theirs.gate.weight.detach().numpy())):
        np.testing.assert_array_equal(model.tensor(role, 1).dequantize(), wanted.reshape(-1, wanted.shape[-1]))


def test_weights_that_are_not_made_to_add_up_to_one(tmp_path):
    saved = made(QWEN3_MOE)
    saved.config.norm_topk_prob = False
    saved.save_pretrained(tmp_path)
    file = as_gguf(saved, tmp_path / "x.gguf", expert_weights_norm=False)
    for model in (load(tmp_path), load(file)):
        route = next(c.problem for c in step_calls(model) if c.kind is CallKind.ROUTE)
        assert route.key == "moe_route(E=6,k=2,style=all)"


def test_layers_without_experts_among_others_are_refused(tmp_path):
    made(QWEN3_MOE).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "mlp_only_layers": [0]}))
    with pytest.raises(KforgeError, match="layers without experts"):
        load(tmp_path)


@pytest.mark.parametrize(("family", "changes", "words"), [
    (QWEN3_MOE, {"drop": ("blk.1.ffn_up_exps.weight",)}, "blk.1.ffn_up_exps.weight"),
    (QWEN3_MOE, {"expert_used_count": 7}, "7 of 6 experts"),
    (QWEN3, {"expert_count": 4}, "qwen3"),
    (QWEN2, {"drop": ("blk.1.attn_k.bias",)}, "blk.1.attn_k.bias"),
    (QWEN3, {"drop": ("blk.0.attn_q_norm.weight",)}, "blk.0.attn_q_norm.weight"),
    (QWEN2, {"rope__scaling__type": "yarn"}, "yarn"),
])
def test_a_file_that_lacks_what_its_family_needs_is_refused(tmp_path, family, changes, words):
    with pytest.raises(KforgeError, match=words):
        load(as_gguf(made(family), tmp_path / "bad.gguf", **changes))


def test_a_sliding_window_is_refused(tmp_path):
    made(QWEN3).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_sliding_window": True, "sliding_window": 64}))
    with pytest.raises(KforgeError, match="use_sliding_window"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["tiny-qwen2-test", "tiny-qwen3-test", "tiny-qwen3-moe-test"])
def test_synthetic_files_hold_what_was_planned(tmp_path, name):
    synth(name, "q4_k_m", path := tmp_path / "x.gguf")
    model, planned = load(path), plan(name, "q4_k_m")
    assert replace(model.config, name=name, rms_eps=1e-6, bos_id=None, eos_id=None, stop_ids=(), chat_template=None
                   ) == planned.config
    assert [c.problem for c in step_calls(model)] == [c.problem for c in step_calls(planned)]
    assert model.header.fields["tokenizer.ggml.pre"] == "qwen2"
    text = "numbers 1234 are cut digit by digit\n"
    ids = model.tokenizer.encode(text)
    assert model.tokenizer.decode(ids) == text and ids[0] != model.config.bos_id
    for role in (Vector.Q_BIAS, Vector.Q_NORM):
        if role in {ref.role for ref in roles_of(model.config)}:
            assert set(model.tensor(role, 0).tolist()) == {0.0 if role is Vector.Q_BIAS else 1.0}
