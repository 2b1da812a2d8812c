"""Models of ``transformers`` as GGUF files, laid out as llama.cpp's converter does it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

_ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE}


def as_gguf(model, path: Path, *, drop=(), **fields: object) -> Path:
    """Tensors are named by the ``gguf`` package; those in ``drop`` are left out. ``fields``: more metadata of the
    architecture, with __ for a dot."""
    c = model.config
    which = _ARCHITECTURES[c.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[which])
    names = gguf.get_tensor_name_map(which, c.num_hidden_layers)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if c.model_type != "qwen2":
        writer.add_key_length(c.head_dim)
        writer.add_value_length(c.head_dim)
    if c.model_type == "qwen3_moe":
        writer.add_expert_feed_forward_length(c.moe_intermediate_size)
        writer.add_expert_count(c.num_experts)
        writer.add_expert_used_count(c.num_experts_per_tok)
    for key, value in fields.items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}[type(value)]
        add(f"{writer.arch}.{key.replace('__', '.')}", value)
    for name, values in _tensors(model):
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if theirs not in drop and not (c.tie_word_embeddings and name == "lm_head.weight"):
            writer.add_tensor(theirs, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(model) -> Iterator[tuple[str, np.ndarray]]:
    """By the names that the package knows: of experts one array for each of three matrices."""
    for name, values in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), values.chunk(2, 1), strict=True):
                yield name.replace("gate_up", part) + ".weight", half.contiguous().numpy()
        elif name.endswith("experts.down_proj"):
            yield name + ".weight", values.numpy()
        else:
            yield name, values.numpy()
