"""Writes folders of safetensors files with random weights, in bf16, or int8 as ``compressed-tensors`` stores W8A8
models, so that other engines can read the very same weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kforge.core.dtypes import DType, WeightFormat
from kforge.models.config import Family, RopeScaling
from kforge.models.folder_tensors import SCALE
from kforge.models.pretokenizers import RULES
from kforge.models.roles import Vector, WeightRef, roles_of, shape_of
from kforge.models.safetensors_file import tensor_name
from kforge.models.synth_bytes import random_bytes
from kforge.models.synth_plan import NORMS, PRE_TOKENIZERS, FileFormat, SynthPlan
from kforge.models.synth_vocab import CHAT_TEMPLATE, CONTROL, synth_vocab

if TYPE_CHECKING:
    import torch

_ARCHITECTURES = {Family.LLAMA: "LlamaForCausalLM", Family.QWEN2: "Qwen2ForCausalLM", Family.QWEN3: "Qwen3ForCausalLM"}
_SPREAD = 73.9  # standard deviation of uniform int8
_BOS, _EOS = "<|begin_of_text|>", "<|eot_id|>"
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "block_structure": None}


def write_folder(what: SynthPlan, folder: Path, seed: int) -> None:
    """``what`` is of bf16 or W8A8, ``folder`` is there and empty. One file of tensors for each layer, so that memory
    holds little of the model."""
    from safetensors.torch import save_file

    rng = np.random.default_rng(seed)
    refs = roles_of(what.config)
    shards = [[ref for ref in refs if ref.layer == layer] for layer in (None, *range(what.config.layers))]
    places: dict[str, str] = {}
    size = 0
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {key: entry for ref in shard for key, entry in _tensors(what, ref, rng).items()}
        save_file(tensors, folder / name, {"format": "pt"})
        places |= dict.fromkeys(tensors, name)
        size += sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": places})
    _write_json(folder / "config.json", _config(what))
    _write_tokenizer(what, folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _tensors(what: SynthPlan, ref: WeightRef, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """By name."""
    import torch

    from kforge.operators.numerics import narrow

    name, shape = tensor_name(ref.role, ref.layer, what.config.family), shape_of(what.config, ref.role)
    if isinstance(ref.role, Vector):
        constant = np.full(shape, 1.0 if ref.role in NORMS else 0.0, np.float32)
        return {name: _bfloat16(narrow(constant, DType.BF16))}
    n, k = shape
    if what.format(ref.role, ref.layer) is WeightFormat.BF16:
        return {name: _bfloat16(random_bytes(rng, WeightFormat.BF16, n * k, k).view(np.uint16).reshape(n, k))}
    values = torch.frombuffer(bytearray(rng.bytes(n * k)), dtype=torch.int8).reshape(n, k)
    scales = (rng.uniform(0.75, 1.25, (n, 1)) / (_SPREAD * math.sqrt(k))).astype(np.float32)
    return {name: values, name + SCALE: _bfloat16(narrow(scales, DType.BF16))}


def _bfloat16(bits: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(bits).view(torch.bfloat16)


def _config(what: SynthPlan) -> dict[str, Any]:
    c = what.config
    rope: dict[str, Any] | None = None
    if c.rope.scaling is RopeScaling.LLAMA3:
        rope = {"rope_type": "llama3", "factor": c.rope.factor, "low_freq_factor": c.rope.low_freq_factor,
                "high_freq_factor": c.rope.high_freq_factor,
                "original_max_position_embeddings": c.rope.original_context}
    told: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[c.family]], "model_type": c.family.value, "num_hidden_layers": c.layers,
        "hidden_size": c.hidden, "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim, "intermediate_size": c.intermediate, "hidden_act": "silu", "vocab_size": c.vocab,
        "max_position_embeddings": c.context_length, "rms_norm_eps": c.rms_eps, "rope_theta": c.rope.theta,
        "rope_scaling": rope, "tie_word_embeddings": c.tied_head, "bos_token_id": c.vocab - len(CONTROL),
        "eos_token_id": c.vocab - len(CONTROL) + CONTROL.index(_EOS), "torch_dtype": "bfloat16",
    }
    if what.file_format is FileFormat.W8A8:
        told["quantization_config"] = _quantization()
    return told


def _quantization() -> dict[str, Any]:
    linear = {
        "targets": ["Linear"],
        "weights": {**_INT8, "strategy": "channel", "dynamic": False, "observer": "minmax"},
        "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": linear}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    }


def _write_tokenizer(what: SynthPlan, folder: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    c = what.config
    vocab, rule = synth_vocab(c.vocab), RULES[PRE_TOKENIZERS.get(c.family, "qwen2")]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocab.merges)]
    backend = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(vocab.texts)}, merges=merges,
                                   ignore_merges=rule.ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    if c.family is Family.LLAMA:
        backend.post_processor = processors.TemplateProcessing(f"{_BOS} $A", f"{_BOS} $A {_BOS} $B",
                                                               [(_BOS, vocab.id(_BOS))])
    backend.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": _BOS, "eos_token": _EOS,
        "chat_template": CHAT_TEMPLATE, "model_max_length": c.context_length, "clean_up_tokenization_spaces": False,
    })
