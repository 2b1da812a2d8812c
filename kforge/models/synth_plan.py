"""Shapes of well-known models, and the type that llama.cpp's quantiser gives each of their tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

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
from kforge.models.roles import EXPERTS, Matrix, Vector, roles_of, shape_of


class FileFormat(StrEnum):
    """A whole file's format, which mixes tensor formats."""

    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"
    Q4_K_M = "q4_k_m"
    MXFP4_MOE = "mxfp4_moe"  # experts in mxfp4, all else q8_0
    BF16 = "bf16"
    F16 = "f16"
    W8A8 = "w8a8"  # a folder of safetensors: int8 with a scale a row, embedding and head bf16

    @property
    def suffix(self) -> str:
        """Of the file's name; none for a folder."""
        return "" if self is FileFormat.W8A8 else ".gguf"


_BASE = {FileFormat.Q4_0: WeightFormat.Q4_0, FileFormat.Q4_1: WeightFormat.Q4_1, FileFormat.Q8_0: WeightFormat.Q8_0,
         FileFormat.MXFP4_MOE: WeightFormat.Q8_0,
         FileFormat.Q4_K_M: WeightFormat.Q4_K, FileFormat.BF16: WeightFormat.BF16, FileFormat.F16: WeightFormat.F16}


def _llama(name: str, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, *,
           factor: float, tied: bool) -> ModelConfig:
    rope = Rope(500_000.0, RopeStyle.NORM, RopeScaling.LLAMA3, factor, 1.0, 4.0, 8192)
    return ModelConfig(name, Family.LLAMA, layers, hidden, heads, kv_heads, head_dim, intermediate, vocab=128_256,
                       context_length=131_072, rms_eps=1e-5, rope=rope, tied_head=tied)


# Sources: the config.json files published with the models.
_QWEN2 = ModelConfig("qwen2.5-0.5b", Family.QWEN2, 24, 896, 14, 2, 64, 4864, vocab=151_936, context_length=32_768,
                     rms_eps=1e-6, rope=Rope(1e6, RopeStyle.NEOX), tied_head=True, qkv_bias=True)
_QWEN3 = ModelConfig("qwen3-0.6b", Family.QWEN3, 28, 1024, 16, 8, 128, 3072, vocab=151_936, context_length=40_960,
                     rms_eps=1e-6, rope=Rope(1e6, RopeStyle.NEOX), tied_head=True, qk_norm=True)
_QWEN3_MOE = ModelConfig("qwen3-30b-a3b", Family.QWEN3_MOE, 48, 2048, 32, 4, 128, 768, vocab=151_936,
                         context_length=40_960, rms_eps=1e-6, rope=Rope(1e6, RopeStyle.NEOX), tied_head=False,
                         qk_norm=True, experts=Experts(128, 8))
_GPT_OSS_EXPERTS = Experts(32, 4, gate=ExpertGate.SWIGLU_OAI, bias=True)
_GPT_OSS = ModelConfig("gpt-oss-20b", Family.GPT_OSS, 24, 2880, 64, 8, 64, 2880, vocab=201_088, context_length=131_072,
                       rms_eps=1e-5, tied_head=False, qkv_bias=True, o_bias=True, windows=(128, 0), sinks=True,
                       rope=Rope(150_000.0, RopeStyle.NEOX, RopeScaling.YARN, 32.0, original_context=4096,
                                 whole_pairs=False, magnitude=yarn_magnitude(32.0)),
                       experts=_GPT_OSS_EXPERTS)
_SHAPES = (
    _llama("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, factor=32.0, tied=True),
    _llama("llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, factor=32.0, tied=True),
    _llama("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, factor=8.0, tied=False),
    _QWEN2,
    _QWEN3,
    _QWEN3_MOE,
    _GPT_OSS,
    # Small enough for tests, with every divisibility that the K formats need.
    replace(_llama("tiny-llama-test", 2, 256, 4, 2, 64, 512, factor=8.0, tied=True), vocab=1024, context_length=2048),
    replace(_QWEN2, name="tiny-qwen2-test", layers=2, hidden=256, heads=4, intermediate=512, vocab=1024,
            context_length=2048),
    replace(_QWEN3, name="tiny-qwen3-test", layers=2, hidden=256, heads=4, kv_heads=2, intermediate=512, vocab=1024,
            context_length=2048),
    replace(_QWEN3_MOE, name="tiny-qwen3-moe-test", layers=2, hidden=256, heads=4, kv_heads=2, intermediate=256,
            vocab=1024, context_length=2048, experts=Experts(8, 3)),
    replace(_GPT_OSS, name="tiny-gpt-oss-test", layers=2, hidden=288, heads=4, kv_heads=2, intermediate=288, vocab=1024,
            context_length=2048, windows=(48, 0), experts=replace(_GPT_OSS_EXPERTS, count=8, per_token=3)),
)
SHAPES = {config.name: config for config in _SHAPES}


NORMS = frozenset({Vector.ATTN_NORM, Vector.FFN_NORM, Vector.FINAL_NORM, Vector.Q_NORM, Vector.K_NORM})
PRE_TOKENIZERS = {Family.LLAMA: "llama-bpe", Family.GPT_OSS: "gpt-4o"}  # else qwen2


@dataclass(frozen=True)
class SynthPlan:
    """A model that is not written yet: enough for its graph and workloads (it is a ``graph.ModelShape``)."""

    config: ModelConfig
    file_format: FileFormat

    def format(self, role: Matrix, layer: int | None = None) -> WeightFormat:
        """What llama.cpp's quantiser stores this matrix as, without an importance matrix; for w8a8 what
        ``compressed-tensors`` does when only the head is on its ignore list.

        Source: the type selection of llama.cpp's llama-quant.cpp, which never quantises routers; of models with experts
        only those with other than 8 of them.
        """
        if self.file_format is FileFormat.W8A8:
            return self._w8a8(role)
        if role is Matrix.ROUTER:
            return WeightFormat.F32
        if self.file_format is FileFormat.MXFP4_MOE:
            return WeightFormat.MXFP4 if role in EXPERTS else WeightFormat.Q8_0
        base = _BASE[self.file_format]
        if not base.quantized:
            return base
        if role is Matrix.HEAD and self.config.tied_head:
            role = Matrix.EMBED
        chosen = base
        if role is Matrix.HEAD or (role is Matrix.EMBED and self.config.tied_head):
            chosen = WeightFormat.Q8_0 if base is WeightFormat.Q8_0 else WeightFormat.Q6_K
        elif role in (Matrix.V, Matrix.DOWN, Matrix.EXPERT_DOWN) and self.file_format is FileFormat.Q4_K_M:
            assert layer is not None
            chosen = WeightFormat.Q6_K if _more_bits(layer, self.config.layers) else base
        columns = shape_of(self.config, role)[-1]
        if columns % chosen.traits.file_block == 0:
            return chosen
        if chosen is WeightFormat.Q6_K:
            return WeightFormat.Q8_0
        raise KforgeError(f"{self.config.name}: rows of {columns} cannot be stored as {self.file_format}.")

    def _w8a8(self, role: Matrix) -> WeightFormat:
        if self.config.experts:
            raise KforgeError(f"{self.config.name}: models with experts cannot be written as {self.file_format}.")
        return WeightFormat.BF16 if role in (Matrix.EMBED, Matrix.HEAD) else WeightFormat.INT8_CHANNEL


def storable(config: ModelConfig, file_format: FileFormat) -> bool:
    """Whether every matrix has rows that the format can hold."""
    planned = SynthPlan(config, file_format)
    try:
        for ref in roles_of(replace(config, layers=1)):
            if isinstance(ref.role, Matrix):
                planned.format(ref.role, ref.layer)
    except KforgeError:
        return False
    return True


def _more_bits(layer: int, layers: int) -> bool:
    """The layers of a mixed file whose sensitive matrices get more bits: the outer eighths and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def plan(name: str, file_format: str, layers: int | None = None) -> SynthPlan:
    """The named shape, cut to ``layers`` when given. Raises ``KforgeError`` for an unknown name or format."""
    if name not in SHAPES:
        raise KforgeError(f"No shape named '{name}' (known: {', '.join(SHAPES)}).")
    try:
        chosen = FileFormat(file_format.lower())
    except ValueError:
        raise KforgeError(f"No file format named '{file_format}' (known: {', '.join(FileFormat)}).") from None
    config = SHAPES[name]
    if chosen is FileFormat.W8A8:  # only GGUF files carry rows of q and k permuted
        config = replace(config, rope=replace(config.rope, style=RopeStyle.NEOX))
    if layers is not None:
        if not 1 <= layers <= config.layers:
            raise KforgeError(f"{name} has {config.layers} layers; 1 to {config.layers} can be written, not {layers}.")
        config = replace(config, layers=layers)
    return SynthPlan(config, chosen)
