"""The operator calls of one step of a model, in order: the one place that says them.

The engine builds its programs from this list and ``kforge workloads`` counts it, so what is tuned is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kforge.core.defaults import DEFAULT_ACT, DEFAULT_KV, DEFAULT_ROWS, PAGE_TOKENS, require_types
from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.workload import Attr, Problem
from kforge.models.config import Experts, ModelConfig
from kforge.models.roles import Matrix, Vector, WeightRef, shape_of


class ModelShape(Protocol):
    """What the graph needs of a model: an opened file, or the plan of a file not written yet."""

    @property
    def config(self) -> ModelConfig: ...

    def format(self, role: Matrix, layer: int | None = None) -> WeightFormat: ...


class CallKind(StrEnum):
    """A call's place in the step: what an engine switches on to choose buffers."""

    EMBED = "embed"
    ATTN_NORM = "attn_norm"
    QKV = "qkv"  # fused, into one [T, (Hq+2Hkv)*D]
    Q = "q"  # when formats differ: the parts write their columns of the same buffer
    K = "k"
    V = "v"
    ROPE = "rope"  # the cache's writes included, and the norms of q and k where a model has them
    ATTENTION = "attention"
    O = "o"  # noqa: E741 - the field's name. Adds into the residual stream
    FFN_NORM = "ffn_norm"
    GATE_UP = "gate_up"  # fused with silu, into [T, I]
    GATE = "gate"  # when formats differ: the parts write their halves of [T, 2I], then silu_mul
    UP = "up"
    SILU = "silu"
    DOWN = "down"  # adds into the residual stream
    ROUTER = "router"  # logits of the experts, [T, E]
    ROUTE = "route"  # the experts of each token, their weights, the slots of each expert
    EXPERT_GATE_UP = "expert_gate_up"  # fused with the gate, into [T*k, I]
    EXPERT_DOWN = "expert_down"  # into [T*k, H]
    COMBINE = "combine"  # adds what the experts of a token gave into the residual stream
    GATHER = "gather"  # rows of the residual stream whose logits are wanted
    FINAL_NORM = "final_norm"
    HEAD = "head"
    ARGMAX = "argmax"

    @property
    def per_sequence(self) -> bool:
        """Whether its rows are the step's wanted logits (one a sequence) instead of its tokens."""
        return self in {CallKind.GATHER, CallKind.FINAL_NORM, CallKind.HEAD, CallKind.ARGMAX}


@dataclass(frozen=True)
class StepOptions:
    """Choices that are compiled into kernels and hold for the whole engine."""

    kv: str = DEFAULT_KV  # element type of the KV cache
    page: int = PAGE_TOKENS  # tokens per page of the KV cache
    rows: int = DEFAULT_ROWS  # panel height of packed weights
    act: str = DEFAULT_ACT  # activations that products take: see ``WeightFormat.act``

    def __post_init__(self) -> None:
        require_types(self.kv, self.act)


@dataclass(frozen=True)
class Call:
    """One operator call. ``weights`` in launch order; several matrices are concatenated along their rows (those of
    experts expert by expert), vectors are tensors of their own."""

    label: str  # for instance "layers.3.qkv"
    kind: CallKind
    problem: Problem
    weights: tuple[WeightRef, ...] = ()
    biases: tuple[WeightRef, ...] = ()
    layer: int | None = None


def step_calls(model: ModelShape, options: StepOptions = StepOptions()) -> list[Call]:
    """Every call of one step, in order: the same list for decode and prefill, which differ in dynamic axes only."""
    build = _Builder(model, options)
    c = model.config
    calls = [build.embedding()]
    for layer in range(c.layers):
        calls.append(build.norm(CallKind.ATTN_NORM, Vector.ATTN_NORM, layer))
        calls += build.qkv(layer)
        calls += build.attention(layer)
        calls.append(build.linear(CallKind.O, (Matrix.O,), layer, "residual", (Vector.O_BIAS,) if c.o_bias else ()))
        calls.append(build.norm(CallKind.FFN_NORM, Vector.FFN_NORM, layer))
        calls += build.experts(c.experts, layer) if c.experts else build.feed_forward(layer)
    calls.append(Call("gather", CallKind.GATHER, Problem.of("gather_rows", H=c.hidden)))
    calls.append(build.norm(CallKind.FINAL_NORM, Vector.FINAL_NORM, None))
    calls.append(build.linear(CallKind.HEAD, (Matrix.HEAD,), None, "none"))
    calls.append(Call("argmax", CallKind.ARGMAX, Problem.of("argmax", V=c.vocab)))
    return calls


class _Builder:
    def __init__(self, model: ModelShape, options: StepOptions) -> None:
        self.model, self.c, self.options = model, model.config, options

    def embedding(self) -> Call:
        weight = self.model.format(Matrix.EMBED).value
        problem = Problem.of("embedding", V=self.c.vocab, H=self.c.hidden, weight=weight, rows=self.options.rows)
        return Call("embed", CallKind.EMBED, problem, (WeightRef(Matrix.EMBED),))

    def norm(self, kind: CallKind, role: Vector, layer: int | None) -> Call:
        problem = Problem.of("rms_norm", H=self.c.hidden, residual=0)
        return Call(_label(kind, layer), kind, problem, (WeightRef(role, layer),), layer=layer)

    def linear(self, kind: CallKind, roles: tuple[Matrix, ...], layer: int | None, epilogue: str,
               biases: tuple[Vector, ...] = (), act: str | None = None) -> Call:
        """One matrix product; ``roles`` must share one format. Tied heads refer to the embedding table. ``act``: of
        integer weights, where it is not the options' choice."""
        weights = tuple(self._ref(role, layer) for role in roles)
        weight = self.model.format(roles[0], layer)
        static: dict[str, Attr] = {
            "K": self._columns(roles[0]),
            "N": sum(self._rows(role) for role in roles),
            "weight": weight.value,
            "act": weight.act(act or self.options.act),
            "epilogue": epilogue,
            "bias": int(bool(biases)),
            "rows": self.options.rows,
        }
        refs = tuple(WeightRef(b, layer) for b in biases)
        return Call(_label(kind, layer), kind, Problem.of("linear", **static), weights, refs, layer)

    def qkv(self, layer: int) -> list[Call]:
        parts = (Matrix.Q, Matrix.K, Matrix.V)
        biases = (Vector.Q_BIAS, Vector.K_BIAS, Vector.V_BIAS) if self.c.qkv_bias else ()
        if self._same_format(parts, layer):
            return [self.linear(CallKind.QKV, parts, layer, "none", biases)]
        kinds = (CallKind.Q, CallKind.K, CallKind.V)
        return [self.linear(kind, (part,), layer, "none", biases[i:i + 1])
                for i, (kind, part) in enumerate(zip(kinds, parts, strict=True))]

    def attention(self, layer: int) -> list[Call]:
        c, o = self.c, self.options
        shape: dict[str, Attr] = {"Hq": c.heads, "Hkv": c.kv_heads, "D": c.head_dim, "P": o.page, "kv": o.kv}
        rope = Problem.of("qk_norm_rope_kv_write" if c.qk_norm else "rope_kv_write", **shape, style=c.rope.style.value)
        norms = (WeightRef(Vector.Q_NORM, layer), WeightRef(Vector.K_NORM, layer)) if c.qk_norm else ()
        attention = Problem.of("paged_attention", **shape, window=c.window(layer), sinks=int(c.sinks))
        sinks = (WeightRef(Vector.SINKS, layer),) if c.sinks else ()
        return [Call(_label(CallKind.ROPE, layer), CallKind.ROPE, rope, norms, layer=layer),
                Call(_label(CallKind.ATTENTION, layer), CallKind.ATTENTION, attention, sinks, layer=layer)]

    def feed_forward(self, layer: int) -> list[Call]:
        down = self.linear(CallKind.DOWN, (Matrix.DOWN,), layer, "residual")
        if self._same_format((Matrix.GATE, Matrix.UP), layer):
            return [self.linear(CallKind.GATE_UP, (Matrix.GATE, Matrix.UP), layer, "silu_gate"), down]
        silu = Problem.of("silu_mul", I=self.c.intermediate)
        return [self.linear(CallKind.GATE, (Matrix.GATE,), layer, "none"),
                self.linear(CallKind.UP, (Matrix.UP,), layer, "none"),
                Call(_label(CallKind.SILU, layer), CallKind.SILU, silu, layer=layer), down]

    def experts(self, experts: Experts, layer: int) -> list[Call]:
        """A layer's mixture of experts. Router weights are few, and which experts run hangs on them: they are taken as
        they are, with float activations."""
        if not self._same_format((Matrix.EXPERT_GATE, Matrix.EXPERT_UP), layer):
            raise KforgeError(f"{self.c.name}: layer {layer} has experts whose gate and up matrices are stored in "
                              "different formats, which is not supported.")
        e, k = experts.count, experts.per_token
        bias = (Vector.ROUTER_BIAS,) if experts.bias else ()
        router = self.linear(CallKind.ROUTER, (Matrix.ROUTER,), layer, "none", bias, act="f32")
        route = Problem.of("moe_route", E=e, k=k, style="chosen" if experts.normalised else "all")
        gates, ups = (Matrix.EXPERT_GATE, Vector.EXPERT_GATE_BIAS), (Matrix.EXPERT_UP, Vector.EXPERT_UP_BIAS)
        downs = (Matrix.EXPERT_DOWN, Vector.EXPERT_DOWN_BIAS)
        return [router, Call(_label(CallKind.ROUTE, layer), CallKind.ROUTE, route, layer=layer),
                self._expert_linear(CallKind.EXPERT_GATE_UP, experts, (gates, ups), layer, "token", experts.gate.value),
                self._expert_linear(CallKind.EXPERT_DOWN, experts, (downs,), layer, "slot", "none"),
                Call(_label(CallKind.COMBINE, layer), CallKind.COMBINE,
                     Problem.of("moe_combine", H=self.c.hidden, k=k), layer=layer)]

    def _expert_linear(self, kind: CallKind, experts: Experts, parts: tuple[tuple[Matrix, Vector], ...], layer: int,
                       source: str, epilogue: str) -> Call:
        """``parts``: matrices, each with its bias; ``source``: whose rows of x the slots read."""
        roles = tuple(role for role, _ in parts)
        weight = self.model.format(roles[0], layer)
        static: dict[str, Attr] = {
            "E": experts.count, "k": experts.per_token, "input": source, "K": shape_of(self.c, roles[0])[-1],
            "N": sum(shape_of(self.c, role)[-2] for role in roles), "weight": weight.value,
            "act": weight.act(self.options.act), "epilogue": epilogue, "bias": int(experts.bias),
            "rows": self.options.rows,
        }
        biases = tuple(WeightRef(bias, layer) for _, bias in parts) if experts.bias else ()
        return Call(_label(kind, layer), kind, Problem.of("moe_linear", **static),
                    tuple(WeightRef(role, layer) for role in roles), biases, layer)

    def _same_format(self, roles: tuple[Matrix, ...], layer: int) -> bool:
        return len({self.model.format(role, layer) for role in roles}) == 1

    def _ref(self, role: Matrix, layer: int | None) -> WeightRef:
        return WeightRef(Matrix.EMBED if role is Matrix.HEAD and self.c.tied_head else role, layer)

    def _rows(self, role: Matrix) -> int:
        return shape_of(self.c, role)[0]

    def _columns(self, role: Matrix) -> int:
        return shape_of(self.c, role)[1]


def _label(kind: CallKind, layer: int | None) -> str:
    return kind.value if layer is None else f"layers.{layer}.{kind.value}"
