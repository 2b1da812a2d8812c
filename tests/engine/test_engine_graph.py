"""Every path of the graph: mixed formats, biases, norms of q and k, both rope styles, untied heads, experts; kernels
beside torch."""

from dataclasses import replace

import numpy as np
import pytest
from toy_model import CONFIG, ToyModel

from kforge.core.dtypes import WeightFormat as F
from kforge.engine.engine import Engine
from kforge.models.config import ExpertGate, Experts, Family, Rope, RopeStyle
from kforge.models.roles import Matrix

MODELS = {
    "fused, tied": ToyModel(rest=F.Q8_0),
    "nothing fused": ToyModel(formats={Matrix.V: F.Q6_K, Matrix.UP: F.Q8_0, Matrix.DOWN: F.Q6_K}, rest=F.Q4_K),
    "untied, biases, neox": ToyModel(
        replace(CONFIG, tied_head=False, qkv_bias=True, o_bias=True, rope=Rope(10000.0, RopeStyle.NEOX)),
        formats={Matrix.HEAD: F.BF16}, rest=F.F16,
    ),
    "norms of q and k": ToyModel(
        replace(CONFIG, family=Family.QWEN3, qk_norm=True, rope=Rope(10000.0, RopeStyle.NEOX)), rest=F.Q8_0,
    ),
    "experts": ToyModel(
        replace(CONFIG, family=Family.QWEN3_MOE, experts=Experts(6, 2)), rest=F.Q8_0,
        formats={Matrix.EXPERT_DOWN: F.Q6_K, **dict.fromkeys((Matrix.EXPERT_GATE, Matrix.EXPERT_UP), F.Q4_K),
                 Matrix.ROUTER: F.F32},
    ),
    "experts with parts of a softmax over all, and biases": ToyModel(
        replace(CONFIG, family=Family.QWEN3_MOE, experts=Experts(6, 2, normalised=False, bias=True)), rest=F.F16,
    ),
    "sinks and windows, a clamped gate": ToyModel(
        replace(CONFIG, family=Family.GPT_OSS, experts=Experts(6, 2, gate=ExpertGate.SWIGLU_OAI, bias=True), sinks=True,
                windows=(0, 40), qkv_bias=True, o_bias=True),
        formats=dict.fromkeys((Matrix.EXPERT_GATE, Matrix.EXPERT_UP, Matrix.EXPERT_DOWN), F.MXFP4), rest=F.BF16,
    ),
    "three groups of layers, one larger than the others": ToyModel(
        replace(CONFIG, layers=4, windows=(40, 0, 8, 40), sinks=True), rest=F.Q8_0,
    ),
}
TOKENS = [(37 * i) % 320 for i in range(150)]


@pytest.mark.parametrize("name", MODELS)
def test_kernels_and_torch_agree_on_every_path(name, kernels):
    model = MODELS[name]
    native = Engine(model, kernels, act="f32", kv="f32", kv_tokens=256, text=False)
    torch = Engine(model, "none", kv="f32", kv_tokens=256, text=False)
    ours, theirs = native.logits(TOKENS, 50), torch.logits(TOKENS, 64)
    np.testing.assert_allclose(ours, theirs, atol=2e-4 * np.abs(theirs).max(), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 64])
def test_the_panel_height_changes_no_bit(kernels, rows):
    model = MODELS["nothing fused"]
    wanted = Engine(model, kernels, kv_tokens=256, text=False).logits(TOKENS, 64)
    ours = Engine(model, kernels, kv_tokens=256, rows=rows, text=False).logits(TOKENS, 64)
    np.testing.assert_array_equal(ours.view(np.int32), wanted.view(np.int32))
