"""Qwen2 and Qwen3 in both kinds of file: the configuration, tensors by role, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
import transformers

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.config import Family, RopeStyle
from kforge.models.graph import step_calls
from kforge.models.roles import Vector, roles_of
from kforge.models.synth import synth
from kforge.models.synth_plan import plan

SETTINGS = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=128,
                num_hidden_layers=2, max_position_embeddings=256, rms_norm_eps=1e-6, eos_token_id=[2, 3],
                rope_parameters={"rope_type": "default", "rope_theta": 1e6})
QWEN2, QWEN3 = Family.QWEN2, Family.QWEN3


def made(family: Family) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    if family is QWEN2:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SETTINGS, tie_word_embeddings=True))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SETTINGS, head_dim=32))
    with torch.no_grad():
        for values in model.parameters():
            values.copy_(torch.randn(values.shape))
    return model


def as_gguf(model, path, *, drop=(), **fields: str):
    """The file as llama.cpp's converter lays it out, its tensors named by the ``gguf`` package."""
    c = model.config
    writer = gguf.GGUFWriter(path, c.model_type)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[c.model_type.upper()], c.num_hidden_layers)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if c.model_type == "qwen3":
        writer.add_key_length(c.head_dim)
        writer.add_value_length(c.head_dim)
    for key, value in fields.items():
        writer.add_string(f"{c.model_type}.{key.replace('__', '.')}", value)
    for name, values in model.state_dict().items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs not in drop and not (c.tie_word_embeddings and name == "lm_head.weight"):
            writer.add_tensor(theirs, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values_of(model, ref) -> np.ndarray:
    stored = model.tensor(ref.role, ref.layer)
    return stored if isinstance(stored, np.ndarray) else stored.dequantize()


@pytest.mark.parametrize("family", [QWEN2, QWEN3])
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


@pytest.mark.parametrize(("family", "changes", "words"), [
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


@pytest.mark.parametrize("name", ["tiny-qwen2-test", "tiny-qwen3-test"])
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
