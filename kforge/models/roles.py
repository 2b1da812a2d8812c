"""Names for a model's tensors that do not depend on the file format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kforge.models.config import ModelConfig


class Matrix(StrEnum):
    """Weight matrices, stored [out, in] (the embedding table [vocab, hidden])."""

    EMBED = "embed"
    Q = "q"
    K = "k"
    V = "v"
    O = "o"  # noqa: E741 - the field's name
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    HEAD = "head"


class Vector(StrEnum):
    """One-dimensional tensors, handed out as float32."""

    ATTN_NORM = "attn_norm"
    FFN_NORM = "ffn_norm"
    FINAL_NORM = "final_norm"
    Q_BIAS = "q_bias"
    K_BIAS = "k_bias"
    V_BIAS = "v_bias"
    O_BIAS = "o_bias"
    Q_NORM = "q_norm"
    K_NORM = "k_norm"


Role = Matrix | Vector

GLOBAL = frozenset({Matrix.EMBED, Matrix.HEAD, Vector.FINAL_NORM})  # the others exist once per layer


@dataclass(frozen=True)
class WeightRef:
    """One tensor of a model: its role, and its layer (None for tensors that exist once)."""

    role: Role
    layer: int | None = None


def role_of(name: str) -> Role:
    """The role with this name. Raises ``ValueError`` for an unknown name."""
    return Vector(name) if name in Vector.__members__.values() else Matrix(name)


def shape_of(config: ModelConfig, role: Role) -> tuple[int, ...]:
    """[rows, columns] of a matrix, [size] of a vector."""
    c = config
    return {
        Matrix.EMBED: (c.vocab, c.hidden),
        Matrix.HEAD: (c.vocab, c.hidden),
        Matrix.Q: (c.q_size, c.hidden),
        Matrix.K: (c.kv_size, c.hidden),
        Matrix.V: (c.kv_size, c.hidden),
        Matrix.O: (c.hidden, c.q_size),
        Matrix.GATE: (c.intermediate, c.hidden),
        Matrix.UP: (c.intermediate, c.hidden),
        Matrix.DOWN: (c.hidden, c.intermediate),
        Vector.ATTN_NORM: (c.hidden,),
        Vector.FFN_NORM: (c.hidden,),
        Vector.FINAL_NORM: (c.hidden,),
        Vector.Q_BIAS: (c.q_size,),
        Vector.K_BIAS: (c.kv_size,),
        Vector.V_BIAS: (c.kv_size,),
        Vector.O_BIAS: (c.hidden,),
        Vector.Q_NORM: (c.head_dim,),
        Vector.K_NORM: (c.head_dim,),
    }[role]


def roles_of(config: ModelConfig) -> list[WeightRef]:
    """Every tensor that a model of this shape has, in the order of a step."""
    per_layer: list[Role] = [Vector.ATTN_NORM, Matrix.Q, Matrix.K, Matrix.V]
    if config.qkv_bias:
        per_layer += [Vector.Q_BIAS, Vector.K_BIAS, Vector.V_BIAS]
    if config.qk_norm:
        per_layer += [Vector.Q_NORM, Vector.K_NORM]
    per_layer += [Matrix.O]
    if config.o_bias:
        per_layer += [Vector.O_BIAS]
    per_layer += [Vector.FFN_NORM, Matrix.GATE, Matrix.UP, Matrix.DOWN]
    refs = [WeightRef(Matrix.EMBED)]
    refs += [WeightRef(role, layer) for layer in range(config.layers) for role in per_layer]
    refs += [WeightRef(Vector.FINAL_NORM)]
    return refs if config.tied_head else [*refs, WeightRef(Matrix.HEAD)]
