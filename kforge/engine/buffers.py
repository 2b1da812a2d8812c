"""The memory of a step for programs: activations, KV cache, axes. Allocated once for the largest step."""

from __future__ import annotations

import math

import numpy as np

from kforge.core.errors import KforgeError
from kforge.engine.cache_groups import CacheLayout
from kforge.engine.steps import GroupInputs, StepInputs, StepLimits, StepShape
from kforge.engine.weights import Weights
from kforge.models.config import rope_tables
from kforge.models.graph import Call, CallKind
from kforge.models.model import Model
from kforge.native import Arena
from kforge.operators import get
from kforge.operators.layouts import panel_layout

KV_TYPES: dict[str, np.dtype] = {"f32": np.dtype(np.float32), "bf16": np.dtype(np.uint16), "f16": np.dtype(np.float16),
                                "i8": np.dtype(np.int8)}
F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
_SLACK = 4096  # alignment of each array


class Buffers:
    """Fixed addresses whose contents change between replays.

    Programs keep pointers to the arrays in ``axes``; ``set_axes`` writes a step's dynamic axes into them.
    ``shared``: for programs of another process too. ``given`` holds what kernels only read, ``worked`` what they write.
    """

    def __init__(self, model: Model, limits: StepLimits, kv: str, shared: bool = False) -> None:
        if kv not in KV_TYPES:
            raise KforgeError(f"Unknown element type of the KV cache '{kv}': use one of {', '.join(KV_TYPES)}.")
        c, T, S = model.config, limits.max_tokens, limits.max_sequences
        self._limits, self._config = limits, c
        positions = limits.context
        kv_type, page = KV_TYPES[kv], limits.page_tokens
        self._layout = CacheLayout.of(c)
        cache = (self._layout.depth, limits.pages, c.kv_heads)
        shapes: dict[str, tuple[int, ...]] = {
            "x": (T, c.hidden), "h": (T, c.hidden), "qkv": (T, c.q_size + 2 * c.kv_size), "q": (T, c.q_size),
            "attn": (T, c.q_size), "gate_up": (T, 2 * c.intermediate), "ff": (T, c.intermediate),
            "last": (S, c.hidden), "last_h": (S, c.hidden), "logits": (S, c.vocab),
        }
        whole: dict[str, tuple[int, ...]] = {}  # numbers of experts and slots
        if c.experts:
            e, k = c.experts.count, c.experts.per_token
            del shapes["gate_up"]
            shapes |= {"ff": (T * k, c.intermediate), "expert_out": (T * k, c.hidden), "router": (T, e),
                       "expert_weight": (T, k)}
            whole = {"expert": (T, k), "order": (T * k,), "expert_start": (e + 1,)}
        tables = rope_tables(c, positions)
        integers = 4 * (2 * T + 4 * S + limits.groups * (T + S * limits.table_width))
        self.given = Arena(integers + tables.cos.nbytes + tables.sin.nbytes + (16 + 2 * limits.groups) * _SLACK, shared)
        sizes = [4 * math.prod(shape) + _SLACK for shape in (*shapes.values(), *whole.values(), (S,))]
        self._worked = Arena(sum(sizes), shared)
        row = c.head_dim * kv_type.itemsize + (F32.itemsize if kv == "i8" else 0)  # a position in one head
        self._caches = Arena(2 * math.prod(cache) * page * row + 4 * _SLACK, shared)
        self.inputs = StepInputs(limits, self.given.take)
        self.greedy = self._worked.take((S,), np.int32)
        self._named = {name: self._worked.take(shape, F32, page_aligned=True) for name, shape in shapes.items()}
        self._named |= {name: self._worked.take(shape, I32, page_aligned=True) for name, shape in whole.items()}
        self._named |= {"cos": self._given(tables.cos), "sin": self._given(tables.sin)}
        self.logits = self._named["logits"]
        self._keys = self._caches.take((*cache, c.head_dim, page), kv_type)
        self._values = self._caches.take((*cache, page, c.head_dim), kv_type)
        self._scales = [self._caches.take((*cache, page), F32) for _ in ("k", "v")] if kv == "i8" else []
        # One array per kind of axes, so that a step costs a handful of stores however many launches it has.
        most = StepShape(T, S, S, limits.context)
        self._tokens, self._rows, self._gather, self._rope, self._attention = (self._axes_of(n, most) for n in _AXES)
        self._most = [self._axes_of(name, most) for name in _AXES]
        scalars = {"eps": [c.rms_eps], "scale": [c.head_dim**-0.5], "": []}
        self._scalars = {name: self._given(np.array(values, np.float64)) for name, values in scalars.items()}

    @property
    def worked(self) -> tuple[Arena, ...]:
        return self._worked, self._caches

    def tensors(self, call: Call, weights: Weights) -> tuple[np.ndarray, ...]:
        """Arguments of a call in launch order; parts of an unfused matrix write columns of the fused buffer."""
        n, c, i = self._named, self._config, self.inputs
        bias = (weights.vector(call.biases),) if call.biases else ()
        match call.kind:
            case CallKind.EMBED:
                return i.ids, self._weight(call, weights), n["x"]
            case CallKind.ATTN_NORM | CallKind.FFN_NORM:
                return n["x"], weights.vector(call.weights), n["h"]
            case CallKind.QKV:
                return n["h"], self._weight(call, weights), *bias, n["qkv"]
            case CallKind.Q:
                return n["h"], self._weight(call, weights), *bias, n["qkv"][:, : c.q_size]
            case CallKind.K:
                return n["h"], self._weight(call, weights), *bias, n["qkv"][:, c.q_size : c.q_size + c.kv_size]
            case CallKind.V:
                return n["h"], self._weight(call, weights), *bias, n["qkv"][:, c.q_size + c.kv_size :]
            case CallKind.ROPE:
                norms = np.split(weights.vector(call.weights), len(call.weights)) if call.weights else []
                given = n["qkv"], *norms, i.positions, self._group(call).slots, n["cos"], n["sin"]
                return *given, n["q"], *self._cache(call)
            case CallKind.ATTENTION:
                sinks = (weights.vector(call.weights),) if call.weights else ()
                table = self._group(call).block_table
                return n["q"], *self._cache(call), table, i.query_start, i.context, *sinks, n["attn"]
            case CallKind.O:
                return n["attn"], self._weight(call, weights), *bias, n["x"], n["x"]
            case CallKind.GATE_UP:
                return n["h"], self._weight(call, weights), n["ff"]
            case CallKind.GATE:
                return n["h"], self._weight(call, weights), n["gate_up"][:, : c.intermediate]
            case CallKind.UP:
                return n["h"], self._weight(call, weights), n["gate_up"][:, c.intermediate :]
            case CallKind.SILU:
                return n["gate_up"], n["ff"]
            case CallKind.DOWN:
                return n["ff"], self._weight(call, weights), n["x"], n["x"]
            case CallKind.ROUTER:
                return n["h"], self._weight(call, weights), *bias, n["router"]
            case CallKind.ROUTE:
                return n["router"], n["expert"], n["expert_weight"], n["order"], n["expert_start"]
            case CallKind.EXPERT_GATE_UP:
                return n["h"], n["order"], n["expert_start"], self._weight(call, weights), *bias, n["ff"]
            case CallKind.EXPERT_DOWN:
                return n["ff"], n["order"], n["expert_start"], self._weight(call, weights), *bias, n["expert_out"]
            case CallKind.COMBINE:
                return n["expert_out"], n["expert_weight"], n["x"]
            case CallKind.GATHER:
                return n["x"], i.index, n["last"]
            case CallKind.FINAL_NORM:
                return n["last"], weights.vector(call.weights), n["last_h"]
            case CallKind.HEAD:
                return n["last_h"], self._weight(call, weights), n["logits"]
            case CallKind.ARGMAX:
                return n["logits"], self.greedy

    def axes(self, call: Call) -> np.ndarray:
        """The live array of the call's dynamic axes."""
        match call.kind:
            case CallKind.GATHER:
                return self._gather
            case CallKind.ROPE:
                return self._rope
            case CallKind.ATTENTION:
                return self._attention
        return self._rows if call.kind.per_sequence else self._tokens

    def max_axes(self, call: Call) -> np.ndarray:
        """The largest axes that the call may ever get: what its scratch is reserved for."""
        live = (self._tokens, self._rows, self._gather, self._rope, self._attention)
        return next(most for array, most in zip(live, self._most, strict=True) if array is self.axes(call))

    def set_axes(self, shape: StepShape) -> None:
        self._tokens[0] = shape.tokens
        self._rows[0] = shape.rows
        self._gather[0] = shape.rows
        self._gather[1] = shape.tokens
        self._rope[0] = shape.tokens
        self._attention[0] = shape.tokens
        self._attention[1] = shape.sequences
        self._attention[4] = shape.max_context

    def dynamic(self, call: Call, shape: StepShape) -> dict[str, int]:
        """Dynamic axes by name for a step of this shape, as look-ups want them."""
        names = get(call.problem.operator).dynamic_axes
        values = self._axis_values(shape)
        values["T"] = values["M"] = shape.rows if call.kind.per_sequence else shape.tokens
        if call.kind is CallKind.GATHER:
            values["T"] = shape.tokens
        return {name: values[name] for name in names}

    def scalars(self, call: Call) -> np.ndarray:
        return self._scalars["".join(get(call.problem.operator).scalar_names)]

    def _group(self, call: Call) -> GroupInputs:
        return self.inputs.groups[self._layout.groups[call.layer or 0]]

    def _cache(self, call: Call) -> tuple[np.ndarray, ...]:
        """Keys and values of the call's layer in every page, and their scales where they are integers; pages of other
        groups hold other layers there."""
        place = self._layout.places[call.layer or 0]
        return tuple(part[place] for part in (self._keys, self._values, *self._scales))

    def _weight(self, call: Call, weights: Weights) -> np.ndarray:
        gate_up = call.kind in (CallKind.GATE_UP, CallKind.EXPERT_GATE_UP)
        layout = panel_layout(call.problem.int("rows"), gate_up)
        experts = call.problem.int("E") if call.problem.operator == "moe_linear" else 1
        return weights.matrix(call.weights, layout, experts)

    def _axis_values(self, shape: StepShape) -> dict[str, int]:
        limits = self._limits
        return {"T": shape.tokens, "M": shape.tokens, "S": shape.sequences, "R": shape.rows, "B": limits.table_width,
                "pages": limits.pages, "positions": limits.context, "max_context": shape.max_context}

    def _axes_of(self, names: tuple[str, ...], shape: StepShape) -> np.ndarray:
        values = self._axis_values(shape)
        return self._given(np.array([values[name] for name in names], np.int64))

    def _given(self, values: np.ndarray) -> np.ndarray:
        """A copy where kernels read it."""
        place = self.given.take(values.shape, values.dtype, page_aligned=values.nbytes > _SLACK)
        place[...] = values
        return place


# Declared order of the dynamic axes (docs/architecture.md), by kind of call: tokens, rows, gather, rope, attention.
_AXES = (("T",), ("R",), ("R", "T"), ("T", "pages", "positions"), ("T", "S", "B", "pages", "max_context"))
