"""Families beside ``transformers``' implementations of them: random weights that it wrote, read and run by kforge."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[2] / "bench"))

from accuracy import bits, reference, whole
from accuracy.operators import OperatorCheck
from gpt_oss_files import save_published
from transformers import PreTrainedModel

from kforge.engine.engine import Engine
from kforge.engine.weights import Weights
from kforge.models import load
from kforge.models.config import Family, ModelConfig, RopeStyle
from kforge.models.graph import step_calls
from kforge.models.model import Model
from kforge.models.synth_plan import SHAPES

QWEN3_MOE, GPT_OSS = SHAPES["qwen3-30b-a3b"], SHAPES["gpt-oss-20b"]
FLOATS = {"act": "f32", "kv": "f32"}
# The small ones have the widths of the other tests' toys where they can, and share their kernels.
CASES = [
    pytest.param(replace(SHAPES["tiny-qwen2-test"], intermediate=256, vocab=320), id="qwen2"),
    pytest.param(replace(SHAPES["tiny-qwen3-test"], intermediate=256, vocab=320, tied_head=False), id="qwen3"),
    pytest.param(replace(SHAPES["tiny-qwen3-moe-test"], vocab=320), id="qwen3_moe"),
    pytest.param(replace(SHAPES["tiny-gpt-oss-test"], vocab=320), id="gpt_oss"),
    # True widths with fewer experts: all of them would be gigabytes in float64.
    *(pytest.param(replace(shape, vocab=2048), id=id, marks=(pytest.mark.slow, pytest.mark.timeout(1800)))
      for id, shape in (
          ("qwen3-30b-a3b/12", replace(QWEN3_MOE, layers=2, experts=replace(QWEN3_MOE.experts, count=12))),
          ("gpt-oss-20b/5", replace(GPT_OSS, layers=2, experts=replace(GPT_OSS.experts, count=5))))),
    *(pytest.param(replace(SHAPES[name], layers=2, vocab=2048), id=name, marks=pytest.mark.slow)
      for name in ("qwen2.5-0.5b", "qwen3-0.6b")),
]
NEAR_TIE = 2e-5  # of two router logits about 1: a tenfold of what float32 does to them in these models


@dataclass(frozen=True, eq=False)
class Pair:
    """One model twice: in ``transformers``, in float32 and in float64, and read by kforge from what that saved."""

    theirs: PreTrainedModel
    truth: PreTrainedModel
    model: Model
    weights: Weights
    tokens: list[int]

    def engine(self, kernels, **options) -> Engine:
        return Engine(self.model, kernels, weights=None if kernels == "none" else self.weights, text=False,
                      **{"kv_tokens": 512, **FLOATS, **options})


def made_by_transformers(c: ModelConfig) -> PreTrainedModel:
    """Weights that keep every activation about 1; norms about 1, biases about 0, all of them different."""
    config_class, model_class = reference.CLASSES[c.family]
    own: dict[str, object] = {"head_dim": c.head_dim} if c.family is not Family.QWEN2 else {}
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": c.rope.theta}
    if c.family is Family.QWEN3_MOE:
        own |= {"num_experts": c.experts.count, "num_experts_per_tok": c.experts.per_token, "norm_topk_prob": True,
                "moe_intermediate_size": c.intermediate}
    if c.family is Family.GPT_OSS:
        own |= {"num_local_experts": c.experts.count, "num_experts_per_tok": c.experts.per_token,
                "sliding_window": c.windows[0]}
        rope |= {"rope_type": "yarn", "factor": c.rope.factor, "truncate": False,
                 "original_max_position_embeddings": c.rope.original_context}
    torch.manual_seed(7)
    made = model_class(config_class(
        vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.intermediate, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, max_position_embeddings=c.context_length,
        rms_norm_eps=c.rms_eps, tie_word_embeddings=c.tied_head, initializer_range=c.hidden**-0.5,
        rope_parameters=rope, **own))
    if c.experts:
        made.config._experts_implementation = "eager"
    with torch.no_grad():
        for name, values in made.named_parameters():
            if values.dim() == 1 or name.endswith("bias"):
                values.copy_(torch.randn(values.shape) * 0.3 + (0 if name.endswith("bias") else 1))
    made = (made.bfloat16() if c.experts else made.half()).eval()
    made.model.rotary_emb = type(made.model.rotary_emb)(made.config)  # the conversion rounded its frequencies, too
    return made


def before_a_near_tie(truth: PreTrainedModel, tokens: list[int]) -> list[int]:
    """The text as far as every token's experts are clear in any arithmetic. Who comes after a tie attends to it."""
    margins = [layer.experts.margin for layer in reference.trace(truth, tokens, RopeStyle.NEOX).layers]
    near = np.flatnonzero(np.min(margins, axis=0) < NEAR_TIE)
    return tokens[:near[0]] if len(near) else tokens


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory) -> Pair:
    shape: ModelConfig = request.param
    folder = tmp_path_factory.mktemp(shape.name)
    made = made_by_transformers(shape)
    if shape.family is Family.GPT_OSS:
        save_published(made, folder)
    else:
        made.save_pretrained(folder)
    model = load(folder)
    assert replace(model.config, name=shape.name) == shape
    tokens = np.random.default_rng(1).integers(0, shape.vocab, 150).tolist()
    truth = reference.widened(copy.deepcopy(made), shape)
    if shape.experts:
        tokens = before_a_near_tie(truth, tokens)
        assert len(tokens) >= 140
    return Pair(made.float(), truth, model, Weights(model), tokens)


def test_every_operator_fed_float64_inputs_stays_within_its_bound(pair, kernels):
    tokens = pair.tokens[:70]
    trace = reference.trace(pair.truth, tokens, pair.model.config.rope.style)
    tested = OperatorCheck(pair.model, kernels, pair.weights, tokens, **FLOATS, threads=2)
    results = [tested.run(call, trace) for call in tested.calls(range(pair.model.config.layers))]
    tested.close()
    assert len(results) == len(step_calls(pair.model))
    assert {r.label: (r.kernel, r.reference) for r in results if not max(r.kernel, r.reference) <= 1} == {}


@pytest.mark.parametrize("name", ["none", "default"])
def test_logits_are_as_near_to_float64_as_those_of_transformers_in_float32(pair, kernels, name):
    engine = pair.engine("none" if name == "none" else kernels)
    result, = whole.compare([pair.tokens], lambda t: reference.logits(pair.truth, t), engine.logits,
                            lambda t: reference.logits(pair.theirs, t))
    engine.close()
    assert result.rms_ratio <= 2


def test_rotary_frequencies_are_those_of_transformers(pair):
    rope, theirs = pair.model.config.rope, pair.theirs.model.rotary_emb
    np.testing.assert_allclose(rope.frequencies(pair.model.config.head_dim), theirs.inv_freq.numpy(), rtol=1e-6)
    assert rope.magnitude == pytest.approx(theirs.attention_scaling, rel=1e-7)


def test_what_a_family_has_of_its_own_would_show_if_it_were_left_out(pair):
    changed = copy.copy(pair.model)
    changed.config = replace(pair.model.config, qkv_bias=False, qk_norm=False, sinks=False, windows=())
    wanted = reference.logits(pair.truth, pair.tokens)
    for model, least, most in ((pair.model, 0, 1e-4), (changed, 1e-2, np.inf)):
        engine = Engine(model, "none", text=False, kv_tokens=512, kv="f32")
        error = np.abs(engine.logits(pair.tokens) - wanted).max()
        engine.close()
        assert least <= error < most


def test_paged_decoding_and_chunks_of_any_size_give_the_same_bits(pair, kernels):
    engine = pair.engine(kernels)
    wanted = bits.text_bits(engine, pair.tokens, 64)
    for chunk in (1, 7):
        assert bits.differing(bits.text_bits(engine, pair.tokens, chunk), wanted) == 0
    engine.close()


def test_sequences_say_together_what_each_says_alone(pair, kernels):
    engine = pair.engine(kernels, kv="f16", max_tokens_per_step=48)
    prompts = [pair.tokens[:5], pair.tokens[3:73], pair.tokens[20:150]]
    alone = [bits.generated_bits(engine, [prompt], 6)[0] for prompt in prompts]
    for one, many in zip(alone, bits.generated_bits(engine, prompts, 6), strict=True):
        assert bits.differing(one, many) == 0
    engine.close()
