"""A model in a folder: config.json, model*.safetensors with or without an index, tokenizer.json."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models.config import Family, ModelConfig, Rope, RopeScaling, RopeStyle
from kforge.models.model import Model
from kforge.models.roles import GLOBAL, Matrix, Role, Vector

if TYPE_CHECKING:
    from kforge.models.tokenizer import Tokenizer
    from kforge.operators.layouts import QuantizedWeight

FORMATS = {"F32": WeightFormat.F32, "F16": WeightFormat.F16, "BF16": WeightFormat.BF16}

NAMES: dict[Role, str] = {
    Matrix.EMBED: "model.embed_tokens.weight",
    Matrix.HEAD: "lm_head.weight",
    Vector.FINAL_NORM: "model.norm.weight",
    Vector.ATTN_NORM: "input_layernorm.weight",
    Matrix.Q: "self_attn.q_proj.weight",
    Matrix.K: "self_attn.k_proj.weight",
    Matrix.V: "self_attn.v_proj.weight",
    Matrix.O: "self_attn.o_proj.weight",
    Vector.Q_BIAS: "self_attn.q_proj.bias",
    Vector.K_BIAS: "self_attn.k_proj.bias",
    Vector.V_BIAS: "self_attn.v_proj.bias",
    Vector.O_BIAS: "self_attn.o_proj.bias",
    Vector.Q_NORM: "self_attn.q_norm.weight",
    Vector.K_NORM: "self_attn.k_norm.weight",
    Vector.FFN_NORM: "post_attention_layernorm.weight",
    Matrix.GATE: "mlp.gate_proj.weight",
    Matrix.UP: "mlp.up_proj.weight",
    Matrix.DOWN: "mlp.down_proj.weight",
}


def tensor_name(role: Role, layer: int | None) -> str:
    """The tensor's name in a folder."""
    return NAMES[role] if role in GLOBAL else f"model.layers.{layer}.{NAMES[role]}"


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: ``data`` is its bytes, mapped."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


class SafetensorsModel(Model):
    """Opens and checks the folder; see ``Model``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = _json(path / "config.json")
        self.tensors = {name: t for file in _files(path) for name, t in _tensors(file).items()}
        self.config = _config(path, raw, self.tensors)
        self.check()

    def _name(self, role: Role, layer: int | None) -> str:
        return tensor_name(role, layer)

    def _stored(self, role: Role, layer: int | None) -> Stored:
        name = tensor_name(role, layer)
        if name not in self.tensors:
            raise KforgeError(f"{self.path}: tensor '{name}' is missing.")
        stored = self.tensors[name]
        if stored.dtype not in FORMATS:
            raise KforgeError(f"{stored.file}: tensor '{name}' is stored as {stored.dtype}, which is not supported "
                              f"(supported: {', '.join(FORMATS)}).")
        return stored

    def _stored_shape(self, role: Role, layer: int | None) -> tuple[int, ...]:
        return self._stored(role, layer).shape

    def _stored_format(self, role: Matrix, layer: int | None) -> WeightFormat:
        return FORMATS[self._stored(role, layer).dtype]

    def _matrix(self, role: Matrix, layer: int | None) -> QuantizedWeight:
        from kforge.operators.layouts import from_gguf

        stored = self._stored(role, layer)
        # A float matrix is the same row-major bytes here as in a GGUF file.
        return from_gguf(stored.data, FORMATS[stored.dtype], *stored.shape)

    def _vector(self, role: Vector, layer: int | None) -> np.ndarray:
        stored = self._stored(role, layer)
        if stored.dtype == "BF16":
            return (stored.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        return stored.data.view("<f4" if stored.dtype == "F32" else "<f2").astype(np.float32)

    def _make_tokenizer(self) -> Tokenizer:
        from kforge.models.json_tokenizer import tokenizer_of

        return tokenizer_of(self.path, self.config)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise KforgeError(f"{path}: no such file.") from None
    except (OSError, ValueError) as error:
        raise KforgeError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise KforgeError(f"{path}: a JSON object was expected.")
    return value


def _files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        names = _json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) and Path(n).name == n for n in names.values()):
            raise KforgeError(f"{index}: 'weight_map' must name files of this folder.")
        return [path / name for name in sorted(set(names.values()))]
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise KforgeError(f"{path}: the folder holds no model*.safetensors.")
    return files


def _tensors(file: Path) -> dict[str, Stored]:
    """The package checks the header; it is read again here because the package hands out no mapped bfloat16."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            data = np.memmap(file, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise KforgeError(f"{file}: no such file.") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise KforgeError(f"{file}: corrupt or truncated ({error}).") from error
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:8 + length].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, end = (8 + length + o for o in entry["data_offsets"])
            tensors[name] = Stored(file, entry["dtype"], tuple(entry["shape"]), data[first:end])
    return tensors


def _config(path: Path, raw: dict[str, Any], tensors: dict[str, Stored]) -> ModelConfig:
    file = path / "config.json"
    kind = raw.get("model_type")
    if kind not in list(Family):
        raise KforgeError(f"{file}: models of the family '{kind}' are not supported (supported: {', '.join(Family)}).")
    family = Family(str(kind))
    if raw.get("mlp_bias"):
        raise KforgeError(f"{file}: biases in the feed-forward network are not supported.")
    if (act := raw.get("hidden_act", "silu")) != "silu":
        raise KforgeError(f"{file}: activation '{act}' is not supported (supported: silu).")
    if raw.get("use_sliding_window"):
        raise KforgeError(f"{file}: attention in a sliding window ('use_sliding_window') is not supported.")

    def number(key: str, default: int | None = None) -> int:
        value = raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value <= 0:
            raise KforgeError(f"{file}: '{key}' is {value!r}; a positive integer was expected.")
        return value

    heads, hidden = number("num_attention_heads"), number("hidden_size")
    head_dim = number("head_dim", 128 if family is Family.QWEN3 else hidden // heads)
    layers, vocab = number("num_hidden_layers"), number("vocab_size")
    kv_heads = number("num_key_value_heads", heads)
    if heads % kv_heads:
        raise KforgeError(f"{file}: {heads} heads cannot share {kv_heads} key and value heads.")
    eps = raw.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, float) or not math.isfinite(eps) or eps <= 0:
        raise KforgeError(f"{file}: 'rms_norm_eps' is {eps!r}; a positive number was expected.")
    eos = raw.get("eos_token_id")
    stops = [eos] if isinstance(eos, int) else list(eos or [])
    if (path / "generation_config.json").exists():
        more = _json(path / "generation_config.json").get("eos_token_id")
        stops += [more] if isinstance(more, int) else list(more or [])
    stops = [i for i in stops if isinstance(i, int) and 0 <= i < vocab]
    return ModelConfig(
        name=path.name, family=family, layers=layers, hidden=hidden, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, intermediate=number("intermediate_size"),
        vocab=vocab, context_length=number("max_position_embeddings", 2048), rms_eps=eps,
        rope=_rope(file, raw), tied_head=bool(raw.get("tie_word_embeddings")) or NAMES[Matrix.HEAD] not in tensors,
        qkv_bias=family is Family.QWEN2 or tensor_name(Vector.Q_BIAS, 0) in tensors,
        o_bias=tensor_name(Vector.O_BIAS, 0) in tensors, qk_norm=family is Family.QWEN3,
        bos_id=bos if isinstance(bos := raw.get("bos_token_id"), int) and 0 <= bos < vocab else None,
        eos_id=stops[0] if stops else None, stop_ids=tuple(sorted(set(stops))),
        chat_template=_chat_template(path),
    )


def _rope(file: Path, raw: dict[str, Any]) -> Rope:
    """Reads both spellings: ``rope_theta`` with ``rope_scaling``, and the newer ``rope_parameters``."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(given.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = given.get("rope_type") or given.get("type") or "default"
    try:
        if kind == "default":
            return Rope(theta, RopeStyle.NEOX)
        if kind == "linear":
            return Rope(theta, RopeStyle.NEOX, RopeScaling.LINEAR, float(given["factor"]))
        if kind == "llama3":
            return Rope(theta, RopeStyle.NEOX, RopeScaling.LLAMA3, float(given["factor"]),
                        float(given["low_freq_factor"]), float(given["high_freq_factor"]),
                        int(given["original_max_position_embeddings"]))
    except KeyError as error:
        raise KforgeError(f"{file}: rope scaling of type '{kind}' lacks {error}.") from error
    raise KforgeError(f"{file}: rope scaling of type '{kind}' is not supported (supported: default, linear, llama3).")


def _chat_template(path: Path) -> str | None:
    if (file := path / "chat_template.jinja").exists():
        return file.read_text("utf-8")
    config = path / "tokenizer_config.json"
    template = _json(config).get("chat_template") if config.exists() else None
    if isinstance(template, list):  # several by name
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    return template
