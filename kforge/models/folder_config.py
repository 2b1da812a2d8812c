"""A folder's config.json, generation_config.json and chat template as a ``ModelConfig``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from kforge.models.roles import Matrix, Role, Vector

_KINDS = ("sliding_attention", "full_attention")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ``KforgeError`` for a file that is missing or holds anything else."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise KforgeError(f"{path}: no such file.") from None
    except (OSError, ValueError) as error:
        raise KforgeError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise KforgeError(f"{path}: a JSON object was expected.")
    return value


def family_of(path: Path, raw: dict[str, Any]) -> Family:
    """Raises ``KforgeError`` for one that is not supported."""
    kind = raw.get("model_type")
    if kind not in list(Family):
        raise KforgeError(f"{path / 'config.json'}: models of the family '{kind}' are not supported (supported: "
                          f"{', '.join(Family)}).")
    return Family(str(kind))


def config_of(path: Path, raw: dict[str, Any], has: Callable[[Role], bool]) -> ModelConfig:
    """``raw``: the content of config.json; ``has``: whether the folder has a tensor of this role, in the first layer
    where each layer has one. Raises ``KforgeError`` for what is not supported, and for values that make no sense."""
    file = path / "config.json"
    family = family_of(path, raw)
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
    qk_norm = family in (Family.QWEN3, Family.QWEN3_MOE)
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
        more = read_json(path / "generation_config.json").get("eos_token_id")
        stops += [more] if isinstance(more, int) else list(more or [])
    stops = [i for i in stops if isinstance(i, int) and 0 <= i < vocab]
    oai = family is Family.GPT_OSS
    experts = _experts(file, raw, number, oai) if oai or family is Family.QWEN3_MOE else None
    return ModelConfig(
        name=path.name, family=family, layers=layers, hidden=hidden, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim,
        intermediate=number("moe_intermediate_size" if family is Family.QWEN3_MOE else "intermediate_size"),
        vocab=vocab, context_length=number("max_position_embeddings", 2048), rms_eps=eps,
        rope=_rope(file, raw), tied_head=bool(raw.get("tie_word_embeddings")) or not has(Matrix.HEAD),
        qkv_bias=oai or family is Family.QWEN2 or has(Vector.Q_BIAS), o_bias=oai or has(Vector.O_BIAS),
        qk_norm=qk_norm, experts=experts, windows=_windows(file, raw, layers) if oai else (), sinks=oai,
        bos_id=bos if isinstance(bos := raw.get("bos_token_id"), int) and 0 <= bos < vocab else None,
        eos_id=stops[0] if stops else None, stop_ids=tuple(sorted(set(stops))),
        chat_template=_chat_template(path),
    )


def _experts(file: Path, raw: dict[str, Any], number: Callable[[str], int], oai: bool) -> Experts:
    if oai and (raw.get("swiglu_alpha", 1.702), raw.get("swiglu_limit", 7.0)) != (1.702, 7.0):
        raise KforgeError(f"{file}: only a 'swiglu_alpha' of 1.702 with a 'swiglu_limit' of 7 is supported.")
    if raw.get("decoder_sparse_step", 1) != 1 or raw.get("mlp_only_layers"):
        raise KforgeError(f"{file}: layers without experts beside such with them are not supported.")
    count = number("num_experts" if "num_experts" in raw else "num_local_experts")
    per_token = number("num_experts_per_tok")
    if per_token > count:
        raise KforgeError(f"{file}: {per_token} of {count} experts cannot be chosen.")
    if oai:
        return Experts(count, per_token, gate=ExpertGate.SWIGLU_OAI, bias=True)
    return Experts(count, per_token, normalised=bool(raw.get("norm_topk_prob")))


def _windows(file: Path, raw: dict[str, Any], layers: int) -> tuple[int, ...]:
    """The shortest run of layers that repeats. Every second layer has a window where the file does not say."""
    kinds = raw.get("layer_types") or [_KINDS[i % 2] for i in range(layers)]
    window = raw.get("sliding_window")
    if len(kinds) != layers or not set(kinds) <= set(_KINDS) or not isinstance(window, int) or window < 1:
        raise KforgeError(f"{file}: 'layer_types' must have one of {', '.join(_KINDS)} for each of {layers} layers, "
                          f"and 'sliding_window' be positive, not {window!r}.")
    each = [window if kind == _KINDS[0] else 0 for kind in kinds]
    return tuple(next(each[:n] for n in range(1, layers + 1) if all(each[i] == each[i % n] for i in range(layers))))


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
        if kind == "yarn":
            return _yarn(theta, given)
    except KeyError as error:
        raise KforgeError(f"{file}: rope scaling of type '{kind}' lacks {error}.") from error
    raise KforgeError(f"{file}: rope scaling of type '{kind}' is not supported (supported: default, linear, llama3, "
                      "yarn).")


def _yarn(theta: float, given: dict[str, Any]) -> Rope:
    """As ``transformers`` reads it: the magnitude is named, or follows from the factor, or is the ratio of two that do,
    which ``mscale`` and ``mscale_all_dim`` weigh."""
    factor, magnitude = float(given["factor"]), given.get("attention_factor")
    if magnitude is None:
        magnitude = yarn_magnitude(factor)
        if (over := given.get("mscale")) and (under := given.get("mscale_all_dim")):
            magnitude = (1 + float(over) * (magnitude - 1)) / (1 + float(under) * (magnitude - 1))
    return Rope(theta, RopeStyle.NEOX, RopeScaling.YARN, factor,
                original_context=int(given["original_max_position_embeddings"]),
                beta_fast=float(given.get("beta_fast") or 32), beta_slow=float(given.get("beta_slow") or 1),
                whole_pairs=bool(given.get("truncate", True)), magnitude=float(magnitude))


def _chat_template(path: Path) -> str | None:
    if (file := path / "chat_template.jinja").exists():
        return file.read_text("utf-8")
    config = path / "tokenizer_config.json"
    template = read_json(config).get("chat_template") if config.exists() else None
    if isinstance(template, list):  # several by name
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    return template
