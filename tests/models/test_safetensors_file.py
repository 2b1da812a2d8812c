from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.config import RopeScaling, RopeStyle
from kforge.models.roles import Matrix, Vector


def save(folder, dtype=torch.float32, shards="5GB", **changes):
    """A tiny Llama as transformers saves it."""
    settings = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=128,
                    num_hidden_layers=2, tie_word_embeddings=False, max_position_embeddings=256, bos_token_id=1,
                    eos_token_id=[2, 3], rms_norm_eps=1e-5)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**settings, **changes})).to(dtype)
    model.save_pretrained(folder, max_shard_size=shards)
    return model


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shards", ["5GB", "40KB"])
def test_weights_are_those_that_transformers_saved(tmp_path, dtype, shards):
    saved = save(tmp_path, dtype, shards).model
    model = load(tmp_path)
    assert (shards == "40KB") == (tmp_path / "model.safetensors.index.json").exists()
    layer = saved.layers[1]
    for role, theirs in [(Matrix.Q, layer.self_attn.q_proj), (Matrix.O, layer.self_attn.o_proj),
                         (Matrix.DOWN, layer.mlp.down_proj)]:
        np.testing.assert_array_equal(model.tensor(role, 1).dequantize(), theirs.weight.detach().float().numpy())
    np.testing.assert_array_equal(model.tensor(Vector.FFN_NORM, 0),
                                  saved.layers[0].post_attention_layernorm.weight.detach().float().numpy())
    table = saved.embed_tokens.weight.detach().float().numpy()
    np.testing.assert_array_equal(model.tensor("embed").dequantize(), table)


def test_the_configuration_is_read(tmp_path):
    save(tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64})
    c = load(tmp_path).config
    assert (c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate, c.vocab) == (2, 64, 4, 2, 16, 96, 128)
    assert c.rope.style is RopeStyle.NEOX and c.rope.scaling is RopeScaling.LLAMA3 and c.rope.factor == 8.0
    assert c.rope.theta == 5e5 and c.stop_ids == (2, 3) and not c.tied_head


def test_older_spelling_of_rope_scaling(tmp_path):
    save(tmp_path)
    edit_config(tmp_path, rope_parameters=None, rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0})
    rope = load(tmp_path).config.rope
    assert rope.scaling is RopeScaling.LINEAR and rope.factor == 2.0 and rope.theta == 1e4


def test_a_tied_head_is_the_embedding(tmp_path):
    save(tmp_path, tie_word_embeddings=True)
    model = load(tmp_path)
    assert model.config.tied_head
    np.testing.assert_array_equal(model.tensor(Matrix.HEAD).values, model.tensor(Matrix.EMBED).values)


def test_attention_biases_are_found(tmp_path):
    save(tmp_path, attention_bias=True)
    model = load(tmp_path)
    assert model.config.qkv_bias and model.config.o_bias
    assert model.tensor(Vector.K_BIAS, 0).shape == (32,)


@pytest.mark.parametrize(("changes", "words"), [
    ({"model_type": "mixtral"}, "mixtral"),
    ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight"),
    ({"intermediate_size": 80}, "mlp.gate_proj.weight"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"num_key_value_heads": 3}, "4 heads"),
    ({"num_attention_heads": "four"}, "num_attention_heads"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
])
def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, changes, words):
    save(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(KforgeError, match=words):
        load(tmp_path)


def test_broken_files_are_named(tmp_path):
    with pytest.raises(KforgeError, match=r"config\.json: no such file"):
        load(tmp_path)
    save(tmp_path)
    with pytest.raises(KforgeError, match=r"tokenizer\.json"):
        _ = load(tmp_path).tokenizer
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(KforgeError, match=r"model\.safetensors"):
            load(tmp_path)
    file.unlink()
    with pytest.raises(KforgeError, match="no model"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(KforgeError, match=r"config\.json"):
        load(tmp_path)


def test_an_unsupported_element_type_is_named(tmp_path):
    save(tmp_path, torch.float64)
    with pytest.raises(KforgeError, match="F64"):
        load(tmp_path)
