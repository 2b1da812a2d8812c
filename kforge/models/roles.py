"""Names for a model's tensors that do not depend on the file format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kforge.models.config import ModelConfig


class Matrix(StrEnum):
    """Weight matrices, stored [out, in] (the embedding table [vocab, hidden], those of experts [experts, out, in])."""

    EMBED = "embed"
    Q = "q"
    K = "k"
    V = "v"
    O = "o"  # noqa: E741 - the field's name
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    ROUTER = "router"
    EXPERT_GATE = "expert_gate"
    EXPERT_UP = "expert_up"
    EXPERT_DOWN = "expert_down"
    HEAD = "head"


class Vector(StrEnum):
    """Tensors that are no matrices, handed out as float32."""

    ATTN_NORM = "attn_norm"
    FFN_NORM = "ffn_norm"
    FINAL_NORM = "final_norm"
    Q_BIAS = "q_bias"
    K_BIAS = "k_bias"
    V_BIAS = "v_bias"
    O_BIAS = "o_bias"
    Q_NORM = "q_norm"
    K_NORM = "k_norm"
    SINKS = "sinks"
    ROUTER_BIAS = "router_bias"
    EXPERT_GATE_BIAS = "expert_gate_bias"  # [experts, out], as the others of experts
    EXPERT_UP_BIAS = "expert_up_bias"
    EXPERT_DOWN_BIAS = "expert_down_bias"


Role = Matrix | Vector

GLOBAL = frozenset({Matrix.EMBED, Matrix.HEAD, Vector.FINAL_NORM})  # the others exist once per layer
EXPERTS = frozenset({Matrix.EXPERT_GATE, Matrix.EXPERT_UP, Matrix.EXPERT_DOWN, Vector.EXPERT_GATE_BIAS,
                     Vector.EXPERT_UP_BIAS, Vector.EXPERT_DOWN_BIAS})  # each holds those of all experts of a layer


@dataclass(frozen=True)
class WeightRef:
    """One tensor of a model: its role, and its layer (None for tensors that exist once)."""

    role: Role
    layer: int | None = None


def role_of(name: str) -> Role:
    """The role with this name. Raises ``ValueError`` for an unknown name."""
    return Vector(name) if name in Vector.__members__.values() else Matrix(name)


def shape_of(config: ModelConfig, role: Role) -> tuple[int, ...]:
    """[rows, columns] of a matrix, [size] of a vector; of experts one behind the other, [experts, ...]."""
    c = config
    experts = c.experts.count if c.experts else 0
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
        Matrix.ROUTER: (experts, c.hidden),
        Matrix.EXPERT_GATE: (experts, c.intermediate, c.hidden),
        Matrix.EXPERT_UP: (experts, c.intermediate, c.hidden),
        Matrix.EXPERT_DOWN: (experts, c.hidden, c.intermediate),
        Vector.ATTN_NORM: (c.hidden,),
        Vector.FFN_NORM: (c.hidden,),
        Vector.FINAL_NORM: (c.hidden,),
        Vector.Q_BIAS: (c.q_size,),
        Vector.K_BIAS: (c.kv_size,),
        Vector.V_BIAS: (c.kv_size,),
        Vector.O_BIAS: (c.hidden,),
        Vector.Q_NORM: (c.head_dim,),
        Vector.K_NORM: (c.head_dim,),
        Vector.SINKS: (c.heads,),
        Vector.ROUTER_BIAS: (experts,),
        Vector.EXPERT_GATE_BIAS: (experts, c.intermediate),
        Vector.EXPERT_UP_BIAS: (experts, c.intermediate),
        Vector.EXPERT_DOWN_BIAS: (experts, c.hidden),
    }[role]


def roles_of(config: ModelConfig) -> list[WeightRef]:
    """Every tensor that a model of this shape has, in the order of a step."""
    per_layer: list[Role] = [Vector.ATTN_NORM, Matrix.Q, Matrix.K, Matrix.V]
    if config.qkv_bias:
        per_layer += [Vector.Q_BIAS, Vector.K_BIAS, Vector.V_BIAS]
    if config.qk_norm:
        per_layer += [Vector.Q_NORM, Vector.K_NORM]
    if config.sinks:
        per_layer += [Vector.SINKS]
    per_layer += [Matrix.O]
    if config.o_bias:
        per_layer += [Vector.O_BIAS]
    per_layer += [Vector.FFN_NORM]
    if config.experts:
        per_layer += [Matrix.ROUTER, Matrix.EXPERT_GATE, Matrix.EXPERT_UP, Matrix.EXPERT_DOWN]
        if config.experts.bias:
            per_layer += [Vector.ROUTER_BIAS, Vector.EXPERT_GATE_BIAS, Vector.EXPERT_UP_BIAS, Vector.EXPERT_DOWN_BIAS]
    else:
        per_layer += [Matrix.GATE, Matrix.UP, Matrix.DOWN]
    refs = [WeightRef(Matrix.EMBED)]
    refs += [WeightRef(role, layer) for layer in range(config.layers) for role in per_layer]
    refs += [WeightRef(Vector.FINAL_NORM)]
    return refs if config.tied_head else [*refs, WeightRef(Matrix.HEAD)]
