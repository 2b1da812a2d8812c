"""Model files that both sides read: GGUF files for llama.cpp, folders of safetensors for vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir
from kforge.models.config import ModelConfig
from kforge.models.fetch import resolve
from kforge.models.roles import Vector, WeightRef, roles_of, shape_of
from kforge.models.safetensors_file import tensor_name
from kforge.models.synth import synth
from kforge.models.synth_bytes import random_bytes
from kforge.models.synth_plan import SHAPES
from peers.process import Refused


def gguf(name: str) -> Path:
    """A model by name or path; ``synth:NAME:FORMAT[:LAYERS]`` is made once and kept in the cache."""
    if not name.startswith("synth:"):
        return resolve(name)
    _, shape, fmt, *layers = name.split(":")
    cut = f"-{layers[0]}l" if layers else ""
    path = cache_dir() / "models" / f"{shape}{cut}-{fmt}-synth.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        synth(shape, fmt, path, int(layers[0]) if layers else None)
    return path


def folder(shape: str, fmt: str) -> Path:
    """A folder of random weights of this Llama shape, in ``bf16``, or in what ``kforge model synth`` writes as a folder
    (``w8a8``). Made once, kept in the cache. Raises ``Refused`` for a format that cannot be made."""
    path = cache_dir() / "models" / f"{shape}-{fmt}-synth"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if fmt == "bf16":
            _write_bf16(SHAPES[shape], path)
        else:
            try:
                synth(shape, fmt, path)
            except KforgeError as error:
                raise Refused(f"no folder in {fmt} can be made: {error}") from error
    return path


def vocabulary(path: Path) -> int:
    """Tokens that the model of a folder, or of a file, knows."""
    if path.is_dir():
        return json.loads((path / "config.json").read_text())["vocab_size"]
    from kforge.models import load

    return load(path).config.vocab


def _write_bf16(config: ModelConfig, path: Path) -> None:
    from safetensors.torch import save_file

    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    rng = np.random.default_rng(0)
    tensors = {tensor_name(r.role, r.layer): _bf16(config, r, rng) for r in roles_of(config)}
    save_file(tensors, part / "model.safetensors", {"format": "pt"})
    (part / "config.json").write_text(json.dumps(folder_config(config), indent=1))
    part.rename(path)


def _bf16(config: ModelConfig, ref: WeightRef, rng: np.random.Generator) -> torch.Tensor:
    """Norms are ones, matrices random."""
    shape = shape_of(config, ref.role)
    if isinstance(ref.role, Vector):
        return torch.ones(shape, dtype=torch.bfloat16)
    data = random_bytes(rng, WeightFormat.BF16, int(np.prod(shape)), shape[-1])
    return torch.from_numpy(data).view(torch.bfloat16).reshape(shape)


def folder_config(config: ModelConfig) -> dict[str, object]:
    """config.json of a Llama shape with Llama-3's rotary scaling."""
    rope = config.rope
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": rope.theta,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_context,
        },
        "tie_word_embeddings": config.tied_head,
        "torch_dtype": "bfloat16",
        "bos_token_id": config.vocab - 2,
        "eos_token_id": config.vocab - 1,
    }
