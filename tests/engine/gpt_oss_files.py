"""GPT-OSS as it is published, experts in mxfp4, and as llama.cpp's converter lays that out."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from kforge.core.dtypes import WeightFormat
from kforge.operators.random_weights import random

LARGE = 2  # powers of two by which gates and ups are larger than other weights: some are clamped


def save_published(made: GptOssForCausalLM, folder: Path) -> None:
    """Draws new experts in mxfp4 for ``made``, in its own type, and saves it with them."""
    tensors = {}
    for name, values in made.state_dict().items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = values.contiguous()
            continue
        experts, k, n = values.shape
        drawn = random(WeightFormat.MXFP4, experts * n, k, seed=len(tensors))
        codes = drawn.values.reshape(experts, n, k // 32, 16, 2)
        scales = drawn.d.reshape(experts, n, -1) + np.uint8(LARGE if "gate_up" in name else 0)
        blocks = torch.from_numpy(codes[..., 0] | codes[..., 1] << 4)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": torch.from_numpy(scales)}
        with torch.no_grad():
            values.copy_(convert_moe_packed_tensors(blocks, tensors[f"{name}_scales"], dtype=values.dtype))
    save_file(tensors, folder / "model.safetensors")
    config = {**made.config.to_dict(), "quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))


def save_gguf(folder: Path, path: Path, *, drop=(), **fields: object) -> Path:
    """What ``save_published`` wrote as a GGUF file; tensors in ``drop`` are left out, ``fields`` (with __ for a dot)
    are put in place of what the file would say."""
    c = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "gpt-oss")
    rope = c["rope_parameters"]
    said = {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
            "expert_feed_forward_length": c["intermediate_size"], "expert_count": c["num_local_experts"],
            "expert_used_count": c["num_experts_per_tok"], "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
            "attention.value_length": c["head_dim"], "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
            "attention.sliding_window": c["sliding_window"], "rope.freq_base": rope["rope_theta"],
            "rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"]}
    for key, value in {**said, **{k.replace("__", "."): v for k, v in fields.items()}}.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"gpt-oss.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, c["num_hidden_layers"])
    tensors = load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        stem, _, last = name.rpartition("proj")
        if name.endswith("_scales"):
            continue
        if ".experts." not in name:
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
            parts = {theirs + ".weight" * name.endswith("sinks"): values.float().numpy()}
        else:
            layer = name.split(".")[2]
            rows = (_as_gguf_blocks(values, tensors[f"{stem}proj_scales"]) if last == "_blocks"
                    else values.float().numpy())
            split = {"gate": rows[:, 0::2], "up": rows[:, 1::2]} if "gate_up" in name else {"down": rows}
            suffix = "weight" if last == "_blocks" else "bias"
            parts = {f"blk.{layer}.ffn_{part}_exps.{suffix}": rows for part, rows in split.items()}
        for theirs, part in parts.items():
            if theirs not in drop:
                raw = gguf.GGMLQuantizationType.MXFP4 if part.dtype == np.uint8 else None
                writer.add_tensor(theirs, np.ascontiguousarray(part), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_gguf_blocks(blocks: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    """u8 [experts, rows, 17 * groups]: a scale, then 16 bytes with k in the low and k + 16 in the high nibble."""
    pairs = blocks.numpy()
    codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(*scales.shape, 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([scales.numpy()[..., None], packed], -1).reshape(*scales.shape[:2], -1)
