"""A model in one GGUF file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from gguf import GGMLQuantizationType

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models.config import (
    ExpertGate,
    Experts,
    Family,
    ModelConfig,
    Rope,
    RopeScaling,
    RopeStyle,
    yarn_magnitude,
)
from kforge.models.gguf_header import Header, TensorInfo, read_header
from kforge.models.model import Model
from kforge.models.roles import GLOBAL, Matrix, Role, Vector

if TYPE_CHECKING:
    from kforge.models.tokenizer import Tokenizer
    from kforge.operators.layouts import QuantizedWeight

FORMATS = {
    GGMLQuantizationType.F32: WeightFormat.F32,
    GGMLQuantizationType.F16: WeightFormat.F16,
    GGMLQuantizationType.BF16: WeightFormat.BF16,
    GGMLQuantizationType.Q8_0: WeightFormat.Q8_0,
    GGMLQuantizationType.Q4_0: WeightFormat.Q4_0,
    GGMLQuantizationType.Q4_1: WeightFormat.Q4_1,
    GGMLQuantizationType.Q4_K: WeightFormat.Q4_K,
    GGMLQuantizationType.Q5_K: WeightFormat.Q5_K,
    GGMLQuantizationType.Q6_K: WeightFormat.Q6_K,
    GGMLQuantizationType.MXFP4: WeightFormat.MXFP4,
}

NAMES: dict[Role, str] = {
    Matrix.EMBED: "token_embd.weight",
    Matrix.HEAD: "output.weight",
    Vector.FINAL_NORM: "output_norm.weight",
    Vector.ATTN_NORM: "attn_norm.weight",
    Matrix.Q: "attn_q.weight",
    Matrix.K: "attn_k.weight",
    Matrix.V: "attn_v.weight",
    Matrix.O: "attn_output.weight",
    Vector.Q_BIAS: "attn_q.bias",
    Vector.K_BIAS: "attn_k.bias",
    Vector.V_BIAS: "attn_v.bias",
    Vector.O_BIAS: "attn_output.bias",
    Vector.Q_NORM: "attn_q_norm.weight",
    Vector.K_NORM: "attn_k_norm.weight",
    Vector.FFN_NORM: "ffn_norm.weight",
    Matrix.GATE: "ffn_gate.weight",
    Matrix.UP: "ffn_up.weight",
    Matrix.DOWN: "ffn_down.weight",
    Matrix.ROUTER: "ffn_gate_inp.weight",
    Matrix.EXPERT_GATE: "ffn_gate_exps.weight",
    Matrix.EXPERT_UP: "ffn_up_exps.weight",
    Matrix.EXPERT_DOWN: "ffn_down_exps.weight",
}
_GPT_OSS: dict[Role, str] = {
    Vector.FFN_NORM: "post_attention_norm.weight",
    Vector.ROUTER_BIAS: "ffn_gate_inp.bias",
    Vector.EXPERT_GATE_BIAS: "ffn_gate_exps.bias",
    Vector.EXPERT_UP_BIAS: "ffn_up_exps.bias",
    Vector.EXPERT_DOWN_BIAS: "ffn_down_exps.bias",
    Vector.SINKS: "attn_sinks.weight",
}
_GATES = {Family.QWEN3_MOE: ExpertGate.SILU, Family.GPT_OSS: ExpertGate.SWIGLU_OAI}
_ROPE_DIVISORS = "rope_freqs.weight"
_VECTOR_TYPES = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}

T = TypeVar("T")


def tensor_name(role: Role, layer: int | None, family: Family = Family.LLAMA) -> str:
    """The tensor's name in a GGUF file."""
    name = _GPT_OSS[role] if family is Family.GPT_OSS and role in _GPT_OSS else NAMES[role]
    return name if role in GLOBAL else f"blk.{layer}.{name}"


class GGUFModel(Model):
    """Opens and checks the file; see ``Model``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path)
        self.config = _config(path, self.header)
        self.check()

    def _name(self, role: Role, layer: int | None) -> str:
        return tensor_name(role, layer, self.config.family)

    def _info(self, role: Role, layer: int | None) -> TensorInfo:
        name = self._name(role, layer)
        if name not in self.header.tensors:
            raise KforgeError(f"{self.path}: tensor '{name}' is missing.")
        return self.header.tensors[name]

    def _bytes(self, info: TensorInfo) -> np.ndarray:
        return self.header.data[info.offset:info.offset + info.bytes]

    def _stored_shape(self, role: Role, layer: int | None) -> tuple[int, ...]:
        return self._info(role, layer).shape

    def _stored_format(self, role: Matrix, layer: int | None) -> WeightFormat:
        info = self._info(role, layer)
        if info.type not in FORMATS:
            known = ", ".join(f.name for f in FORMATS)
            raise KforgeError(f"{self.path}: tensor '{info.name}' is stored as {info.type.name}, which is not "
                              f"supported (supported: {known}).")
        return FORMATS[info.type]

    def _matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight:
        from kforge.operators.layouts import from_gguf

        info = self._info(role, layer)
        *rows, columns = info.shape
        return from_gguf(self._bytes(info), self._stored_format(role, layer), math.prod(rows), columns)

    def _vector(self, role: Vector, layer: int | None) -> np.ndarray:
        info = self._info(role, layer)
        return _vector(self.path, self.header, info).reshape(info.shape)

    def _make_tokenizer(self) -> Tokenizer:
        from kforge.models.gguf_tokenizer import tokenizer_of

        return tokenizer_of(self.path, self.header, self.config)


def _vector(path: Path, header: Header, info: TensorInfo) -> np.ndarray:
    if info.type not in _VECTOR_TYPES:
        raise KforgeError(f"{path}: tensor '{info.name}' is stored as {info.type.name}; F32 or F16 was expected.")
    raw = header.data[info.offset:info.offset + info.bytes]
    return raw.view(_VECTOR_TYPES[info.type]).astype(np.float32)


def _config(path: Path, header: Header) -> ModelConfig:
    fields = header.fields
    arch = fields.get("general.architecture")
    families = {f.gguf: f for f in Family}
    if arch not in families:
        raise KforgeError(f"{path}: models of the family '{arch}' are not supported "
                          f"(supported: {', '.join(families)}).")
    family = families[str(arch)]

    def get(key: str, kind: type[T], default: T | None = None) -> T:
        value = fields.get(f"{arch}.{key}", default)
        if value is None:
            raise KforgeError(f"{path}: the metadata lacks '{arch}.{key}'.")
        if not isinstance(value, kind):
            raise KforgeError(f"{path}: '{arch}.{key}' is {value!r}; one {kind.__name__} was expected.")
        return value

    experts, oai = None, family is Family.GPT_OSS
    if oai or family is Family.QWEN3_MOE:
        experts = Experts(get("expert_count", int), get("expert_used_count", int), gate=_GATES[family], bias=oai,
                          normalised=get("expert_weights_norm", bool, True))
        if not 1 <= experts.per_token <= experts.count:
            raise KforgeError(f"{path}: {experts.per_token} of {experts.count} experts cannot be chosen.")
    elif get("expert_count", int, 0) > 0:
        raise KforgeError(f"{path}: mixtures of experts are not supported in the family '{arch}'.")
    if isinstance(count := fields.get("split.count"), int) and count > 1:
        raise KforgeError(f"{path}: one of {count} parts of a split model; merge them with 'llama-gguf-split --merge'.")
    heads, hidden = get("attention.head_count", int), get("embedding_length", int)
    if min(heads, hidden) <= 0:
        raise KforgeError(f"{path}: '{arch}.attention.head_count' and '{arch}.embedding_length' must be positive.")
    head_dim = get("attention.key_length", int, hidden // heads)
    sizes = {get(key, int, head_dim) for key in ("attention.value_length", "rope.dimension_count")}
    if sizes != {head_dim}:
        raise KforgeError(f"{path}: keys, values and rotated dimensions of different sizes are not supported.")
    embed = header.tensors.get(NAMES[Matrix.EMBED])
    if embed is None:
        raise KforgeError(f"{path}: tensor '{NAMES[Matrix.EMBED]}' is missing.")
    kv_heads = get("attention.head_count_kv", int, heads)
    if kv_heads <= 0 or heads % kv_heads:
        raise KforgeError(f"{path}: {heads} heads cannot share {kv_heads} key and value heads.")
    ids = _token_ids(fields, embed.shape[0])
    eos = ids.get("eos")
    template = fields.get("tokenizer.chat_template")
    return ModelConfig(
        name=str(fields.get("general.name", path.stem)), family=family,
        layers=get("block_count", int), hidden=hidden, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim,
        intermediate=get("expert_feed_forward_length" if experts else "feed_forward_length", int), vocab=embed.shape[0],
        context_length=get("context_length", int),
        rms_eps=get("attention.layer_norm_rms_epsilon", float),
        rope=_rope(path, header, family, get("rope.freq_base", float, 10000.0), head_dim),
        tied_head=NAMES[Matrix.HEAD] not in header.tensors,
        qkv_bias=oai or family is Family.QWEN2 or tensor_name(Vector.Q_BIAS, 0) in header.tensors,
        o_bias=oai or tensor_name(Vector.O_BIAS, 0) in header.tensors, sinks=oai,
        windows=(_window(path, fields), 0) if oai else (),
        qk_norm=family in (Family.QWEN3, Family.QWEN3_MOE), experts=experts,
        bos_id=ids.get("bos"), eos_id=eos, stop_ids=_stop_ids(fields, ids),
        chat_template=template if isinstance(template, str) else None,
    )


def _window(path: Path, fields: dict[str, Any]) -> int:
    """Of the first layer and every second one after it: GPT-OSS' pattern stands in no field."""
    window = fields.get(f"{Family.GPT_OSS.gguf}.attention.sliding_window")
    if not isinstance(window, int) or window < 1:
        raise KforgeError(f"{path}: 'attention.sliding_window' is {window!r}; a positive number was expected.")
    return window


def _rope(path: Path, header: Header, family: Family, theta: float, head_dim: int) -> Rope:
    fields = header.fields
    style = RopeStyle.NORM if family is Family.LLAMA else RopeStyle.NEOX
    if info := header.tensors.get(_ROPE_DIVISORS):
        divisors = _vector(path, header, info).tolist()
        if len(divisors) != head_dim // 2 or min(divisors) <= 0:
            raise KforgeError(f"{path}: tensor '{_ROPE_DIVISORS}' must hold {head_dim // 2} positive factors.")
        return Rope(theta, style, divisors=tuple(divisors))
    key = f"{family.gguf}.rope"
    kind = fields.get(f"{key}.scaling.type", "none")
    factor = fields.get(f"{key}.scaling.factor", fields.get(f"{key}.scale_linear", 0.0))
    if kind == "yarn" and family is Family.GPT_OSS:
        return _yarn(path, fields, theta, f"{key}.scaling")
    if kind not in ("none", "linear"):
        raise KforgeError(f"{path}: rope scaling of type '{kind}' is not supported (supported: none, linear, llama3).")
    if isinstance(factor, float) and factor > 0 and factor != 1.0:
        return Rope(theta, style, RopeScaling.LINEAR, factor)
    return Rope(theta, style)


def _yarn(path: Path, fields: dict[str, Any], theta: float, key: str) -> Rope:
    """As the model was trained: the ends of the ramp are not rounded, which no field says."""
    factor, context = fields.get(f"{key}.factor"), fields.get(f"{key}.original_context_length")
    if not isinstance(factor, float) or factor <= 0 or not isinstance(context, int) or context <= 0:
        raise KforgeError(f"{path}: rope scaling of type 'yarn' needs a positive '{key}.factor' and "
                          f"'{key}.original_context_length'.")
    fast, slow = (float(fields.get(f"{key}.yarn_beta_{name}", usual)) for name, usual in (("fast", 32), ("slow", 1)))
    return Rope(theta, RopeStyle.NEOX, RopeScaling.YARN, factor, original_context=context, beta_fast=fast,
                beta_slow=slow, whole_pairs=False, magnitude=yarn_magnitude(factor))


_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "</s>",
                "<|end_of_text|>")


def _token_ids(fields: dict, vocab: int) -> dict[str, int]:
    """Special tokens that the metadata names; an id outside the vocabulary counts as not named."""
    given = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    return {name: v for name, v in given.items() if isinstance(v, int) and 0 <= v < vocab}


def _stop_ids(fields: dict, ids: dict[str, int]) -> tuple[int, ...]:
    """Tokens that end a generation: those named by the metadata, and control tokens that are known to end a turn."""
    stops = {ids[name] for name in ("eos", "eot", "eom") if name in ids}
    tokens, kinds = fields.get("tokenizer.ggml.tokens", []), fields.get("tokenizer.ggml.token_type", [])
    control = 3
    stops |= {i for i, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
              if kind == control and text in _END_OF_TURN}
    return tuple(sorted(stops))
