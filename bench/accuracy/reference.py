"""The model in ``transformers``, from kforge's dequantised weights: in float64 as the truth, in float32 as the peer.

``transformers`` computes norms and rotary tables in float32 whatever the model's type. The truth replaces both by the
same formulas in float64; the peer is left as it comes.

GGUF files of the llama family keep q and k rows permuted (pairs adjacent), ``transformers`` wants halves: rows are
permuted on loading, and what is recorded is permuted back, so that it can be fed to kforge's operators. All other files
have halves themselves.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.initialization import no_init_weights
from transformers.masking_utils import eager_mask
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
from transformers.utils import logging

from kforge.core.errors import KforgeError
from kforge.models.config import Family, ModelConfig, RopeScaling, RopeStyle
from kforge.models.model import Model
from kforge.models.roles import Matrix, Vector, WeightRef, roles_of
from kforge.models.safetensors_file import tensor_name

from .experts import ExpertsTrace, WideRouter, experts_trace

CLASSES = {Family.LLAMA: (LlamaConfig, LlamaForCausalLM), Family.QWEN2: (Qwen2Config, Qwen2ForCausalLM),
           Family.QWEN3: (Qwen3Config, Qwen3ForCausalLM), Family.QWEN3_MOE: (Qwen3MoeConfig, Qwen3MoeForCausalLM),
           Family.GPT_OSS: (GptOssConfig, GptOssForCausalLM)}
_ROTATED = {Matrix.Q, Matrix.K, Vector.Q_BIAS, Vector.K_BIAS, Vector.Q_NORM, Vector.K_NORM}
logging.set_verbosity_error()


def to_halves(x: np.ndarray, head_dim: int) -> np.ndarray:
    """Heads along axis 0 with adjacent pairs (2i, 2i+1) -> pairs (i, i + D/2)."""
    heads = x.reshape(-1, head_dim // 2, 2, *x.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(x.shape)


def to_pairs(x: np.ndarray, head_dim: int) -> np.ndarray:
    """The inverse, along the last axis of activations [T, heads * D]."""
    heads = x.reshape(x.shape[0], -1, 2, head_dim // 2)
    return np.ascontiguousarray(heads.swapaxes(2, 3)).reshape(x.shape)


def truth(model: Model) -> PreTrainedModel:
    """In float64 throughout."""
    return widened(_loaded(model, torch.float64, "recorded"), model.config)


def widened(made: PreTrainedModel, config: ModelConfig) -> PreTrainedModel:
    """``made`` itself in float64 throughout, with the attention that ``trace`` looks into."""
    made = made.double().eval()
    made.config._attn_implementation = "recorded"
    if config.experts:
        made.config._experts_implementation = "eager"
    for layer in made.model.layers:
        norms = [(layer, "input_layernorm"), (layer, "post_attention_layernorm")]
        norms += [(layer.self_attn, name) for name in ("q_norm", "k_norm") if hasattr(layer.self_attn, name)]
        for owner, name in norms:
            setattr(owner, name, _WideNorm(getattr(owner, name)))
        if config.family is Family.QWEN3_MOE:
            layer.mlp.gate = WideRouter(layer.mlp.gate)
    made.model.norm = _WideNorm(made.model.norm)
    made.model.rotary_emb = _WideRotary(config)
    return made


def peer(model: Model) -> PreTrainedModel:
    """In float32, as ``transformers`` comes."""
    return _loaded(model, torch.float32, "sdpa")


def logits(made: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """[T, V] in the model's own type."""
    with torch.inference_mode():
        return made(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """float64 [T, n] between a layer's operators; heads in the file's order."""

    x: np.ndarray
    attn_norm: np.ndarray
    qkv: np.ndarray
    q: np.ndarray  # rotated, normalised before where the model does that
    k: np.ndarray  # the same
    v: np.ndarray
    attention: np.ndarray
    after_attention: np.ndarray  # the residual stream
    ffn_norm: np.ndarray
    ff: np.ndarray  # silu(gate) * up; of experts [T * k, n], one row for each choice
    out: np.ndarray
    experts: ExpertsTrace | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """Everything that the operators of one pass take and give. ``embedded`` is the first layer's input."""

    layers: tuple[LayerTrace, ...]
    final_norm: np.ndarray
    logits: np.ndarray

    @property
    def embedded(self) -> np.ndarray:
        return self.layers[0].x


def trace(made: PreTrainedModel, tokens: list[int], style: RopeStyle) -> Trace:
    """One pass of ``truth``'s model with every module's input and output kept. ``style``: how the file orders heads."""
    kept: dict[str, np.ndarray] = {}
    routed: dict[str, tuple[torch.Tensor, ...]] = {}
    hooks = []

    def keep(name: str, _module: torch.nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if given:
            kept[name + ".in"] = given[0][0].numpy()
        if isinstance(output, tuple):  # of a router: logits, weights, ids
            routed[name] = output
        else:
            kept[name + ".out"] = (output[0] if output.dim() == 3 else output).numpy()

    for name, module in made.named_modules():
        inside = isinstance(module, torch.nn.Linear | _WideNorm) or name.endswith(("mlp.gate", "mlp.router"))
        if inside or name.endswith(tuple(f"layers.{i}" for i in range(1000))):
            hooks.append(module.register_forward_hook(functools.partial(keep, name)))
    rotated: list[torch.Tensor] = []
    made.model.recorded = rotated
    for layer in made.model.layers:
        layer.self_attn.recorded = rotated
    try:
        result = logits(made, tokens)
    finally:
        for layer in made.model.layers:
            layer.self_attn.recorded = None
        for hook in hooks:
            hook.remove()
    d = made.model.layers[0].self_attn.head_dim

    def ordered(x: np.ndarray) -> np.ndarray:
        return to_pairs(x, d) if style is RopeStyle.NORM else x

    layers = []
    for i in range(len(made.model.layers)):
        at = f"model.layers.{i}."
        q, k = (ordered(t[0].transpose(0, 1).flatten(1).numpy()) for t in rotated[2 * i : 2 * i + 2])
        v = kept[at + "self_attn.v_proj.out"]
        parts = [ordered(kept[at + f"self_attn.{n}_proj.out"]) for n in "qk"]
        ffn_norm, experts = kept[at + "post_attention_layernorm.out"], None
        if router := next((r for n, r in routed.items() if n.startswith(at)), None):
            ff, experts = experts_trace(made.model.layers[i].mlp.experts, ffn_norm, router)
        else:
            ff = kept[at + "mlp.down_proj.in"]
        layers.append(LayerTrace(
            kept[at + "input_layernorm.in"], kept[at + "input_layernorm.out"], np.concatenate([*parts, v], 1), q, k, v,
            kept[at + "self_attn.o_proj.in"], kept[at + "post_attention_layernorm.in"],
            ffn_norm, ff, kept[at[:-1] + ".out"], experts))
    return Trace(tuple(layers), kept["model.norm.out"], result)


def _loaded(model: Model, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    c = model.config
    if c.experts:
        raise KforgeError("The accuracy bench knows models with experts only as transformers made them.")
    if c.rope.scaling is not RopeScaling.NONE or c.rope.divisors:
        raise KforgeError("The accuracy bench knows models without rope scaling.")
    config_class, model_class = CLASSES[c.family]
    own = {} if c.family is Family.QWEN2 else {"head_dim": c.head_dim, "attention_bias": c.qkv_bias}
    config = config_class(
        vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.intermediate, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        max_position_embeddings=c.context_length, rms_norm_eps=c.rms_eps, tie_word_embeddings=c.tied_head,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope.theta}, **own)
    config._attn_implementation = attention
    with no_init_weights():  # every weight is loaded below
        made = model_class(config).to(dtype).eval()
    state = {}
    for ref in {*roles_of(c), WeightRef(Matrix.HEAD)}:
        stored = model.tensor(ref.role, ref.layer)
        values = stored if isinstance(stored, np.ndarray) else stored.dequantize()
        if ref.role in _ROTATED and c.rope.style is RopeStyle.NORM:
            values = to_halves(values, c.head_dim)
        state[tensor_name(ref.role, ref.layer)] = values
    made.load_state_dict({name: torch.from_numpy(np.array(v)).to(dtype) for name, v in state.items()})
    return made


class _WideNorm(torch.nn.Module):
    """RMSNorm in the type of its input."""

    def __init__(self, narrow: torch.nn.Module) -> None:
        super().__init__()
        self.weight, self.eps = narrow.weight, narrow.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class _WideRotary(torch.nn.Module):
    """cos and sin of float64 angles, [1, T, D], both halves alike, or as GPT-OSS has them once, [1, T, D/2]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        frequencies = torch.tensor(config.rope.frequencies(config.head_dim), dtype=torch.float64)
        self.frequencies = frequencies.repeat(1 if config.family is Family.GPT_OSS else 2)
        self.magnitude = config.rope.magnitude

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.frequencies
        return (angles.cos() * self.magnitude).to(x.dtype), (angles.sin() * self.magnitude).to(x.dtype)


def _recorded_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                        mask: torch.Tensor | None, *, scaling: float, **_: object) -> tuple[torch.Tensor, None]:
    """Causal attention of one whole text that keeps its rotated q and k ([1, heads, T, D]); with sinks, and the windows
    that are in the mask, by GPT-OSS' own function."""
    if getattr(module, "recorded", None) is not None:
        module.recorded += [query, key]
    if hasattr(module, "sinks"):
        return eager_attention_forward(module, query, key, value, mask, scaling)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("recorded", _recorded_attention)
AttentionMaskInterface.register("recorded", eager_mask)
