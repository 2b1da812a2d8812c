"""What a model is, apart from its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType

if TYPE_CHECKING:
    import numpy as np


class Family(StrEnum):
    """Architectures that are read, by the name that files give them. All are one graph with parts that come or go."""

    LLAMA = "llama"
    QWEN2 = "qwen2"  # q, k and v have biases; Qwen2.5 too
    QWEN3 = "qwen3"  # heads of q and k are normalised before they are rotated
    QWEN3_MOE = "qwen3_moe"  # the same with experts
    GPT_OSS = "gpt_oss"  # experts, biases everywhere, sinks, every second layer in a sliding window

    @property
    def gguf(self) -> str:
        """Its name in GGUF files; the value is that of config.json."""
        return _IN_GGUF.get(self, self.value)


_IN_GGUF = {Family.QWEN3_MOE: "qwen3moe", Family.GPT_OSS: "gpt-oss"}


class RopeStyle(StrEnum):
    """Which two elements of a head turn together.

    GGUF files of the llama family carry q and k rows permuted so that pairs are adjacent; all others keep halves.
    """

    NORM = "norm"  # pairs (2i, 2i+1)
    NEOX = "neox"  # pairs (i, i + D/2)


class RopeScaling(StrEnum):
    NONE = "none"
    LINEAR = "linear"  # positions divided by the factor
    LLAMA3 = "llama3"  # long wavelengths divided by the factor, short ones kept, a ramp between
    YARN = "yarn"  # the same idea with a ramp over the number of the pair, and tables of another magnitude


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: angle of pair i at position p is ``p * theta^(-2i/D)``, scaled."""

    theta: float
    style: RopeStyle
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_context: int = 0  # llama3, yarn: context length of pre-training
    beta_fast: float = 32.0  # yarn: pairs that turn more often than this in the original context are kept
    beta_slow: float = 1.0  # yarn: pairs that turn less often than this are divided
    whole_pairs: bool = True  # yarn: both ends of the ramp are rounded outwards to whole pairs
    magnitude: float = 1.0  # of cos and sin; for yarn see ``yarn_magnitude``
    divisors: tuple[float, ...] = ()  # per pair, from a GGUF file's rope_freqs.weight; replaces ``scaling``

    def frequencies(self, head_dim: int) -> list[float]:
        """Radians per position of each of the head_dim/2 pairs.

        Source of the llama3 rule: the rotary embedding of Llama 3.1's released reference code.
        """
        base = [self.theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
        if self.divisors:
            return [f / d for f, d in zip(base, self.divisors, strict=True)]
        if self.scaling is RopeScaling.LINEAR:
            return [f / self.factor for f in base]
        if self.scaling is RopeScaling.LLAMA3:
            return [self._llama3(f) for f in base]
        if self.scaling is RopeScaling.YARN:
            return [self._yarn(i, f, head_dim) for i, f in enumerate(base)]
        return base

    def _llama3(self, frequency: float) -> float:
        turns = self.original_context * frequency / (2.0 * math.pi)  # over the original context
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = min(max(smooth, 0.0), 1.0)
        return (1.0 - smooth) * frequency / self.factor + smooth * frequency

    def _yarn(self, pair: int, frequency: float, head_dim: int) -> float:
        """Source: section 3.2 of the YaRN paper (arXiv 2309.00071), with its number of turns solved for the pair."""

        def place(turns: float) -> float:
            wavelength = self.original_context / (2.0 * math.pi * turns)
            return head_dim * math.log(wavelength) / (2.0 * math.log(self.theta))

        first, last = place(self.beta_fast), place(self.beta_slow)
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        divided = min(max((pair - first) / (last - first if last != first else 1e-3), 0.0), 1.0)
        return divided * frequency / self.factor + (1.0 - divided) * frequency


def yarn_magnitude(factor: float) -> float:
    """Of cos and sin, where a file does not name it. Source: equation 22 of the YaRN paper."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


class ExpertGate(StrEnum):
    """What an expert makes of its gate and up rows, by the name that ``moe_linear`` has for it."""

    SILU = "silu_gate"
    SWIGLU_OAI = "swiglu_oai"


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of each layer's feed-forward network. Each is as wide as ``intermediate`` says."""

    count: int
    per_token: int  # the experts with the largest logits of its router
    normalised: bool = True  # their weights add up to 1; else they are parts of the softmax over all
    gate: ExpertGate = ExpertGate.SILU
    bias: bool = False  # of the router and of every matrix of every expert


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a decoder-only model; sizes in elements."""

    name: str
    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context_length: int
    rms_eps: float
    rope: Rope
    tied_head: bool  # the head's weight is the embedding table
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False  # an RMSNorm of each head of q and k, with rms_eps, before the rotary embedding
    experts: Experts | None = None
    windows: tuple[int, ...] = ()  # positions that a layer's queries see, 0 for all; repeated over the layers
    sinks: bool = False  # each query head has a logit that takes part in the softmax and has no value
    bos_id: int | None = None
    eos_id: int | None = None
    stop_ids: tuple[int, ...] = ()  # every token that ends a turn, eos included
    chat_template: str | None = None

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def window(self, layer: int) -> int:
        """How many positions a query of this layer sees, the last of them its own; 0: all."""
        return self.windows[layer % len(self.windows)] if self.windows else 0

    def kv_bytes_per_token(self, kv: str) -> int:
        """Bytes of KV cache that one token takes in all layers; ``kv``: element type ("i8" has a float32 scale for each
        head of k and v, too)."""
        scales = 4 * self.kv_heads if kv == DType.I8 else 0
        return 2 * self.layers * (self.kv_size * DType(kv).size + scales)


@dataclass(frozen=True)
class RopeTables:
    """``cos`` and ``sin`` times the rope's magnitude, float32 of shape [positions, head_dim/2]."""

    cos: np.ndarray
    sin: np.ndarray


def rope_tables(config: ModelConfig, positions: int) -> RopeTables:
    """Tables for positions 0 .. positions-1, computed in float64 and rounded once."""
    import numpy as np

    frequencies = np.array(config.rope.frequencies(config.head_dim), dtype=np.float64)
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies[None, :]
    cos, sin = (config.rope.magnitude * part(angles) for part in (np.cos, np.sin))
    return RopeTables(cos.astype(np.float32), sin.astype(np.float32))
