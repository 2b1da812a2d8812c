"""A W8A8 model beside ``transformers`` with the same weights, and its products' inputs quantised a token at a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.models import load
from kforge.models.synth import synth

transformers = pytest.importorskip("transformers")
TEXTS = np.random.default_rng(1).integers(0, 1000, (12, 10)).tolist()
TOKENS = [token for text in TEXTS for token in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("w8a8") / "model"
    synth("tiny-llama-test", "w8a8", path)
    return path


def quantised(x: torch.Tensor) -> torch.Tensor:
    """int8 with a scale for the last axis, as floats again."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).clamp(-127, 127) * scale


def logits_of_transformers(folder: Path, dtype: torch.dtype, int8: bool) -> np.ndarray:
    """float64 [texts, tokens, vocabulary]. ``int8``: whether activations are quantised."""
    raw = json.loads((folder / "config.json").read_text())
    del raw["quantization_config"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**raw))
    tensors = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
    weights = {name: t.float() * tensors[name + "_scale"].float() if t.dtype == torch.int8 else t.float()
               for name, t in tensors.items() if not name.endswith("_scale")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, "the head is tied"
    model.tie_weights()
    model = model.to(dtype).eval()
    if int8:
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                module.register_forward_pre_hook(lambda _, inputs: (quantised(inputs[0]),))
    with torch.inference_mode():
        return model(torch.tensor(TEXTS)).logits.double().numpy()


def logits_of(engine: Engine) -> np.ndarray:
    return np.stack([engine.logits(text) for text in TEXTS])


def same(logits: np.ndarray, truth: np.ndarray) -> float:
    """Share of tokens whose logits, about 1 in size, are off by no more than float32 arithmetic makes them."""
    return float((np.abs(logits - truth).max(-1) < 2e-5).mean())


@pytest.mark.slow
def test_logits_are_those_of_transformers_with_quantised_inputs(folder, kernels):
    """In most tokens to float32's last digits. In float32, theirs too, some activation of the others is rounded to the
    neighbouring integer, which the layers behind it enlarge to the size of quantisation's own error; without
    quantisation every token is off by that."""
    truth = logits_of_transformers(folder, torch.float64, int8=True)
    engine = Engine(load(folder), kernels, kv="f32", kv_tokens=256, text=False)
    ours = logits_of(engine)
    used = {use.problem for use in engine.kernels_used() if "a8_token" in use.problem}
    engine.close()
    assert len(used) == 4, "q+k+v, o, gate+up, down"
    assert same(ours, truth) > 0.5 and same(logits_of_transformers(folder, torch.float32, int8=True), truth) > 0.5
    assert np.abs(ours - truth).max() < 0.5
    assert same(logits_of_transformers(folder, torch.float64, int8=False), truth) == 0


def test_without_kernels_weights_are_dequantised_and_activations_floats(folder):
    engine = Engine(load(folder), "none", kv="f32", kv_tokens=256, text=False)
    ours = logits_of(engine)
    engine.close()
    assert same(ours, logits_of_transformers(folder, torch.float64, int8=False)) == 1


@pytest.mark.slow
def test_batches_and_chunks_change_no_bit(folder, kernels):
    engine = Engine(load(folder), kernels, kv_tokens=1024, text=False, max_tokens_per_step=48)
    prompts = [TOKENS[:5], TOKENS[3:73], TOKENS[20:120]]
    params = SamplingParams(max_tokens=6)
    alone = [engine.generate([prompt], params)[0].tokens for prompt in prompts]
    assert [done.tokens for done in engine.generate(prompts, params)] == alone
    engine.close()
