"""Writes GGUF files, or folders of safetensors, with random weights at the shapes of well-known models: speed does not
depend on the values."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from pathlib import Path

import gguf
import numpy as np

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.paths import require_plain
from kforge.models.config import Family, RopeScaling
from kforge.models.gguf_file import FORMATS, tensor_name
from kforge.models.roles import Vector, WeightRef, roles_of, shape_of
from kforge.models.synth_bytes import random_bytes
from kforge.models.synth_folder import write_folder
from kforge.models.synth_plan import NORMS, PRE_TOKENIZERS, FileFormat, SynthPlan, plan
from kforge.models.synth_vocab import CHAT_TEMPLATE, CONTROL, synth_vocab

_GGML = {ours: theirs for theirs, ours in FORMATS.items()}
_FILE_TYPES = {
    FileFormat.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0, FileFormat.Q4_1: gguf.LlamaFileType.MOSTLY_Q4_1,
    FileFormat.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0, FileFormat.Q4_K_M: gguf.LlamaFileType.MOSTLY_Q4_K_M,
    FileFormat.MXFP4_MOE: gguf.LlamaFileType.MOSTLY_MXFP4_MOE,
    FileFormat.BF16: gguf.LlamaFileType.MOSTLY_BF16, FileFormat.F16: gguf.LlamaFileType.MOSTLY_F16,
}


def synth(name: str, file_format: str, path: Path, layers: int | None = None, seed: int = 0) -> SynthPlan:
    """Writes the file or folder (first beside it, then renamed) and returns what was written.

    Weights have a standard deviation of about 1/sqrt(K), so activations stay finite. Raises ``KforgeError`` for an
    unknown shape or format and when the file cannot be written.
    """
    what = plan(name, file_format, layers)
    if seed < 0:
        raise KforgeError(f"the seed {seed} is negative: use 0 or more.")
    if what.file_format is FileFormat.W8A8:
        _require_new(path)
    else:
        require_plain(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if what.file_format is FileFormat.W8A8:
            part.mkdir()
            write_folder(what, part, seed)
        else:
            _write(what, part, seed)
        part.replace(path)
    except OSError as error:
        raise KforgeError(f"{path}: cannot be written ({error}); choose a folder with room that you may write to."
                          ) from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    return what


def _require_new(folder: Path) -> None:
    if folder.exists():
        raise KforgeError(f"{folder} is already there: give the name of a folder to be made.")


def _write(what: SynthPlan, path: Path, seed: int) -> None:
    config = what.config
    writer = gguf.GGUFWriter(path, config.family.gguf)
    _metadata(writer, what)
    tensors = _tensors(what)
    for tensor in tensors:
        bytes_ = math.prod(tensor.shape) // tensor.format.traits.file_block * tensor.format.traits.file_bytes
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), bytes_, _GGML[tensor.format])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for tensor in tensors:
        writer.write_tensor_data(tensor.data(rng))
    writer.close()


def _metadata(writer: gguf.GGUFWriter, what: SynthPlan) -> None:
    c = what.config
    writer.add_name(f"{c.name} with random weights")
    writer.add_file_type(_FILE_TYPES[what.file_format])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(c.layers)
    writer.add_context_length(c.context_length)
    writer.add_embedding_length(c.hidden)
    writer.add_feed_forward_length(c.intermediate)
    if c.experts:
        writer.add_expert_feed_forward_length(c.intermediate)
        writer.add_expert_count(c.experts.count)
        writer.add_expert_used_count(c.experts.per_token)
    if c.windows:
        writer.add_sliding_window(max(c.windows))
    if c.rope.scaling is RopeScaling.YARN:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(c.rope.factor)
        writer.add_rope_scaling_orig_ctx_len(c.rope.original_context)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.rms_eps)
    writer.add_rope_freq_base(c.rope.theta)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_vocab_size(c.vocab)
    vocab = synth_vocab(c.vocab)
    control = c.vocab - len(CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZERS.get(c.family, "qwen2"))
    writer.add_token_list(vocab.texts)
    writer.add_token_types([gguf.TokenType.CONTROL if i >= control else gguf.TokenType.NORMAL for i in range(c.vocab)])
    writer.add_token_merges(vocab.merges)
    writer.add_bos_token_id(vocab.id("<|begin_of_text|>"))
    writer.add_eos_token_id(vocab.id("<|eot_id|>"))
    writer.add_add_bos_token(c.family is Family.LLAMA)
    writer.add_chat_template(CHAT_TEMPLATE)


class _Random:
    """A random matrix."""

    def __init__(self, name: str, shape: tuple[int, ...], format: WeightFormat) -> None:
        self.name, self.shape, self.format = name, shape, format

    def data(self, rng: np.random.Generator) -> np.ndarray:
        return random_bytes(rng, self.format, math.prod(self.shape), self.shape[-1])


class _Fixed:
    """A float32 vector with given values."""

    format = WeightFormat.F32

    def __init__(self, name: str, values: np.ndarray) -> None:
        self.name, self.shape, self.values = name, values.shape, values.astype(np.float32)

    def data(self, rng: np.random.Generator) -> np.ndarray:
        return self.values


def _tensors(what: SynthPlan) -> list[_Random | _Fixed]:
    c = what.config
    tensors: list[_Random | _Fixed] = []
    if c.rope.scaling is RopeScaling.LLAMA3:
        plain = c.rope.theta ** (-2.0 * np.arange(c.head_dim // 2) / c.head_dim)
        tensors.append(_Fixed("rope_freqs.weight", plain / np.array(c.rope.frequencies(c.head_dim))))
    return [*tensors, *(_tensor(what, ref) for ref in roles_of(c))]


def _tensor(what: SynthPlan, ref: WeightRef) -> _Random | _Fixed:
    name, shape = tensor_name(ref.role, ref.layer, what.config.family), shape_of(what.config, ref.role)
    if isinstance(ref.role, Vector):
        return _Fixed(name, np.ones(shape) if ref.role in NORMS else np.zeros(shape))
    return _Random(name, shape, what.format(ref.role, ref.layer))
