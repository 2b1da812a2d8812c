"""GPT-OSS in both kinds of file: the configuration, tensors by role, what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from gpt_oss_files import save_gguf, save_published
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.config import ExpertGate, Experts, Family, RopeScaling
from kforge.models.graph import CallKind, step_calls
from kforge.models.roles import Matrix, Vector, roles_of
from kforge.models.synth import synth
from kforge.models.synth_plan import plan

EXPERTS = Experts(5, 2, gate=ExpertGate.SWIGLU_OAI, bias=True)


@pytest.fixture(scope="module")
def theirs() -> transformers.PreTrainedModel:
    made = transformers.GptOssForCausalLM(transformers.GptOssConfig(
        hidden_size=64, intermediate_size=96, num_local_experts=5, num_experts_per_tok=2, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=128, sliding_window=24,
        max_position_embeddings=4096)).bfloat16()
    for values in made.parameters():
        values.data.normal_()
    return made


@pytest.fixture(scope="module")
def published(theirs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gpt_oss")
    save_published(theirs, folder)
    return folder


def changed(published: Path, to: Path, **values: object) -> Path:
    shutil.copytree(published, to, dirs_exist_ok=True)
    file = to / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return to


def values_of(model, ref) -> np.ndarray:
    stored = model.tensor(ref.role, ref.layer)
    return stored if isinstance(stored, np.ndarray) else stored.dequantize()


def test_a_folder_holds_what_transformers_has(theirs, published):
    model, layer = load(published), theirs.model.layers[2]
    c = model.config
    assert (c.family, c.experts, c.intermediate, c.windows) == (Family.GPT_OSS, EXPERTS, 96, (24, 0))
    assert c.qkv_bias and c.o_bias and c.sinks and not c.qk_norm and [c.window(i) for i in range(4)] == [24, 0, 24, 0]
    assert (c.rope.scaling, c.rope.theta, c.rope.whole_pairs) == (RopeScaling.YARN, 150_000.0, False)
    assert model.format(Matrix.EXPERT_UP, 2) is WeightFormat.MXFP4 and model.format(Matrix.Q, 2) is WeightFormat.BF16
    gate_up, down = (p.transpose(1, 2) for p in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj))
    for role, wanted in ((Matrix.EXPERT_GATE, gate_up[:, 0::2]), (Matrix.EXPERT_UP, gate_up[:, 1::2]),
                         (Matrix.EXPERT_DOWN, down), (Matrix.ROUTER, layer.mlp.router.weight)):
        np.testing.assert_array_equal(model.tensor(role, 2).dequantize(),
                                      wanted.reshape(-1, wanted.shape[-1]).float().detach().numpy())
    bias = layer.mlp.experts.gate_up_proj_bias
    for role, wanted in ((Vector.EXPERT_GATE_BIAS, bias[:, 0::2]), (Vector.EXPERT_UP_BIAS, bias[:, 1::2]),
                         (Vector.EXPERT_DOWN_BIAS, layer.mlp.experts.down_proj_bias),
                         (Vector.ROUTER_BIAS, layer.mlp.router.bias), (Vector.SINKS, layer.self_attn.sinks)):
        np.testing.assert_array_equal(model.tensor(role, 2), wanted.float().detach().numpy())


def test_windows_are_where_the_file_says(published, tmp_path):
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    model = load(changed(published, tmp_path, layer_types=kinds))
    assert [model.config.window(i) for i in range(4)] == [0, 0, 24, 0]
    windows = [c.problem["window"] for c in step_calls(model) if c.kind is CallKind.ATTENTION]
    assert windows == [0, 0, 24, 0]


@pytest.mark.parametrize("named", [{}, {"attention_factor": 1.25}, {"mscale": 0.8, "mscale_all_dim": 0.4},
                                   {"truncate": True, "beta_fast": 20.0}])
def test_yarn_is_read_as_transformers_reads_it(published, tmp_path, named):
    rope = {"rope_type": "yarn", "rope_theta": 1e5, "factor": 8.0, "original_max_position_embeddings": 2048, **named}
    ours = load(changed(published, tmp_path, rope_parameters=rope)).config
    theirs = transformers.GptOssConfig(head_dim=ours.head_dim, rope_parameters=rope)
    frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](theirs)
    np.testing.assert_allclose(ours.rope.frequencies(ours.head_dim), frequencies.numpy(), rtol=1e-6)
    assert ours.rope.magnitude == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize(("values", "words"), [
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({"sliding_window": None}, "sliding_window"),
    ({"swiglu_limit": 6.0}, "swiglu_limit"),
    ({"num_experts_per_tok": 6}, "6 of 5 experts"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0}}, "original_max_position_embeddings"),
    ({"num_local_experts": 4}, "shape"),
])
def test_folders_that_do_not_fit_are_refused(published, tmp_path, values, words):
    with pytest.raises(KforgeError, match=words):
        load(changed(published, tmp_path, **values))


def test_both_kinds_of_file_hold_the_same_model(published, tmp_path):
    folder, file = load(published), load(save_gguf(published, tmp_path / "x.gguf"))
    unnamed = [replace(m.config, name="", eos_id=None, stop_ids=(), rms_eps=float(np.float32(m.config.rms_eps)))
               for m in (folder, file)]
    assert unnamed[0] == unnamed[1]
    for ref in roles_of(folder.config):
        np.testing.assert_array_equal(values_of(folder, ref), values_of(file, ref), err_msg=str(ref))


@pytest.mark.parametrize(("changes", "words"), [
    ({"drop": ("blk.3.attn_sinks.weight",)}, "blk.3.attn_sinks.weight"),
    ({"drop": ("blk.1.post_attention_norm.weight",)}, "blk.1.post_attention_norm.weight"),
    ({"drop": ("blk.0.ffn_up_exps.bias",)}, "blk.0.ffn_up_exps.bias"),
    ({"attention__sliding_window": 0}, "sliding_window"),
    ({"rope__scaling__original_context_length": 0}, "original_context_length"),
    ({"expert_used_count": 9}, "9 of 5 experts"),
])
def test_files_that_do_not_fit_are_refused(published, tmp_path, changes, words):
    with pytest.raises(KforgeError, match=words):
        load(save_gguf(published, tmp_path / "bad.gguf", **changes))


@pytest.mark.parametrize("file_format", ["mxfp4_moe", "bf16"])
def test_synthetic_files_hold_what_was_planned(tmp_path, file_format):
    synth("tiny-gpt-oss-test", file_format, path := tmp_path / "x.gguf")
    model, planned = load(path), plan("tiny-gpt-oss-test", file_format)
    assert replace(model.config, name=planned.config.name, rms_eps=1e-5, bos_id=None, eos_id=None, stop_ids=(),
                   chat_template=None) == planned.config
    assert [c.problem for c in step_calls(model)] == [c.problem for c in step_calls(planned)]
    assert set(model.tensor(Vector.SINKS, 0).tolist()) == {0.0} and model.tensor(Vector.FFN_NORM, 0).tolist()[0] == 1.0
