"""Folders as ``compressed-tensors`` stores W8A8 models: read to the bit, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.graph import StepOptions, step_calls
from kforge.models.roles import Matrix
from kforge.models.synth import synth

Q = "model.layers.1.self_attn.q_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(tiny("w8a8"), tmp_path / "model"))


def edit_config(folder: Path, place: str, value) -> None:
    """Sets config.json's entry at the dotted place."""
    file = folder / "config.json"
    raw = at = json.loads(file.read_text())
    *keys, last = place.split(".")
    for key in keys:
        at = at[key]
    at[last] = value
    file.write_text(json.dumps(raw))


def edit_tensors(folder: Path, change) -> None:
    """``change`` gets the tensors of layer 1 by name."""
    file = folder / "model-00003-of-00003.safetensors"
    change(tensors := load_file(file))
    save_file(tensors, file)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = {name: where for name, where in index["weight_map"].items() if where != file.name or name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({**index, "weight_map": names}))


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}


def test_weights_are_int8_times_the_row_s_scale(tiny):
    path = tiny("w8a8")
    model, tensors = load(path), stored(path)
    assert tensors[Q].dtype == torch.int8 and tensors[Q + "_scale"].dtype == torch.bfloat16
    for role, name in ((Matrix.Q, Q), (Matrix.DOWN, DOWN)):
        weight = model.tensor(role, 1)
        wanted = tensors[name].float() * tensors[name + "_scale"].float()
        np.testing.assert_array_equal(weight.dequantize(), wanted.numpy())
        assert weight.format is WeightFormat.INT8_CHANNEL
        assert 0.5 < weight.dequantize().std() * weight.k**0.5 < 1.5
    np.testing.assert_array_equal(model.tensor("embed").dequantize(), tensors["model.embed_tokens.weight"].float())


def test_products_take_int8_activations_with_a_scale_a_token_but_for_the_head(tiny):
    model = load(tiny("w8a8"))
    acts = {c.label: (c.problem.str("weight"), c.problem.str("act")) for c in step_calls(model)
            if c.problem.operator == "linear"}
    assert acts.pop("head") == ("bf16", "f32")
    assert len(acts) == 8 and set(acts.values()) == {("int8_channel", "a8_token")}
    floats = step_calls(model, StepOptions(act="f32"))
    assert {c.problem.str("act") for c in floats if c.problem.operator == "linear"} == {"f32"}


def test_a_matrix_that_the_list_ignores_is_read_as_it_is_stored(folder):
    def widen(tensors):
        tensors[DOWN] = tensors[DOWN].bfloat16() * tensors.pop(DOWN + "_scale")

    edit_tensors(folder, widen)
    edit_config(folder, "quantization_config.ignore", ["lm_head", "re:.*down_proj"])
    model = load(folder)
    assert [model.format(Matrix.DOWN, i).value for i in (0, 1)] == ["int8_channel", "bf16"]
    acts = [c.problem.str("act") for c in step_calls(model) if c.label.endswith("down")]
    assert acts == ["a8_token", "f32"]


@pytest.mark.parametrize(("place", "value", "words"), [
    ("quant_method", "gptq", "'gptq'"),
    ("format", "pack-quantized", "'pack-quantized'"),
    ("format", "float-quantized", "'float-quantized'"),
    ("kv_cache_scheme", {"num_bits": 8}, "'kv_cache_scheme'"),
    ("sparsity_config", {"format": "sparse-24-bitmask"}, "sparse-24-bitmask"),
    ("sparsity_config", "dense", "'sparsity_config' 'dense'"),
    ("config_groups", {}, "'config_groups'"),
    ("config_groups.group_0.weights.num_bits", 4, "weights.num_bits' 4"),
    ("config_groups.group_0.weights.strategy", "group", "weights.strategy' 'group'"),
    ("config_groups.group_0.weights.symmetric", False, "weights.symmetric' False"),
    ("config_groups.group_0.weights.type", "float", "weights.type' 'float'"),
    ("config_groups.group_0.input_activations", None, "input_activations' None"),
    ("config_groups.group_0.input_activations.dynamic", False, "input_activations.dynamic' False"),
    ("config_groups.group_0.input_activations.strategy", "tensor", "input_activations.strategy' 'tensor'"),
    ("config_groups.group_0.output_activations", {"num_bits": 8}, "output_activations"),
])
def test_what_is_not_supported_is_named(folder, place, value, words):
    edit_config(folder, f"quantization_config.{place}", value)
    with pytest.raises(KforgeError, match=words) as refused:
        load(folder)
    assert "config.json" in str(refused.value) and "supported: compressed-tensors" in str(refused.value)


def test_a_key_that_is_left_out_means_what_the_package_takes_it_for(folder):
    group = {"weights": {"num_bits": 8, "strategy": "channel"},
             "input_activations": {"strategy": "token", "dynamic": True}}
    edit_config(folder, "quantization_config.config_groups", {"group_0": group})
    assert load(folder).format(Matrix.Q, 0) is WeightFormat.INT8_CHANNEL
    del group["input_activations"]["dynamic"]
    edit_config(folder, "quantization_config.config_groups", {"group_0": group})
    with pytest.raises(KforgeError, match="dynamic' False"):
        load(folder)


def test_int8_without_a_word_in_the_configuration_is_refused(folder):
    edit_config(folder, "quantization_config", None)
    with pytest.raises(KforgeError, match="stored as I8"):
        load(folder)


def test_scales_that_do_not_fit_are_named(folder):
    edit_tensors(folder, lambda tensors: tensors.update({Q + "_scale": torch.ones(3, 1)}))
    with pytest.raises(KforgeError, match=r"q_proj.weight_scale' has shape \[3, 1\]"):
        load(folder)
    edit_tensors(folder, lambda tensors: tensors.update({Q + "_scale": torch.full((256, 1), torch.nan)}))
    with pytest.raises(KforgeError, match=r"q_proj.weight': .*finite"):
        load(folder).tensor(Matrix.Q, 1)
    edit_tensors(folder, lambda tensors: tensors.pop(Q + "_scale"))
    with pytest.raises(KforgeError, match=r"q_proj.weight_scale' is missing"):
        load(folder)


def test_a_synthetic_folder_has_a_tokenizer_and_is_never_written_over(tiny, tmp_path):
    path = tiny("w8a8")
    tokenizer = load(path).tokenizer
    text = "the quick brown fox 123 Größe\n"
    assert tokenizer.encode(text) == load(tiny("bf16")).tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text
    with pytest.raises(KforgeError, match="already there"):
        synth("tiny-llama-test", "w8a8", path)
    again = tmp_path / "again"
    synth("tiny-llama-test", "w8a8", again)
    assert {f.name: f.read_bytes() for f in again.iterdir()} == {f.name: f.read_bytes() for f in path.iterdir()}


@pytest.mark.parametrize("shape", ["tiny-qwen2-test", "tiny-qwen3-test"])
def test_other_families_are_written_too(shape, tmp_path):
    synth(shape, "w8a8", tmp_path / shape)
    model = load(tmp_path / shape)
    assert model.format(Matrix.UP, 1) is WeightFormat.INT8_CHANNEL
    assert model.config.qkv_bias == ("qwen2" in shape) and model.config.qk_norm == ("qwen3" in shape)
