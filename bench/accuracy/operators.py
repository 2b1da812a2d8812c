"""Every operator call of a model, fed ``transformers``' own float64 input for it and held to its operator's bound.

Per call two distances, both in units of the bound: kforge's kernel from the operator's float64 reference on the same
(rounded) inputs; and, in the float variant, that reference from what ``transformers`` computed in float64. The second
proves that the reference is the model's mathematics; it contains the rounding of inputs to float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kforge.core.workload import Workload
from kforge.engine.block_manager import BlockTable
from kforge.engine.buffers import Buffers
from kforge.engine.cache_groups import CacheLayout
from kforge.engine.kernel_set import KernelSet
from kforge.engine.request import SamplingParams, Sequence
from kforge.engine.scheduler import Scheduled
from kforge.engine.steps import StepLimits
from kforge.engine.weights import Weights, with_rows
from kforge.models.graph import Call, CallKind, StepOptions, step_calls
from kforge.models.model import Model
from kforge.native import Kernel, Program, Team
from kforge.operators import get
from kforge.operators.base import Role
from kforge.operators.experts import grouped
from kforge.operators.kv_cache import KvProblem

from .reference import LayerTrace, Trace

PAGE = 64
_BY_LAYER = {
    CallKind.ATTN_NORM: ({"x": "x"}, "attn_norm"), CallKind.QKV: ({"x": "attn_norm"}, "qkv"),
    CallKind.O: ({"x": "attention", "residual": "x"}, "after_attention"),
    CallKind.FFN_NORM: ({"x": "after_attention"}, "ffn_norm"), CallKind.GATE_UP: ({"x": "ffn_norm"}, "ff"),
    CallKind.DOWN: ({"x": "ff", "residual": "after_attention"}, "out"),
}
_OF_EXPERTS = frozenset({CallKind.ROUTER, CallKind.ROUTE, CallKind.EXPERT_GATE_UP, CallKind.EXPERT_DOWN,
                         CallKind.COMBINE})


@dataclass(frozen=True)
class OperatorResult:
    """Largest distances over a call's outputs in units of the bound; at most 1 is right. NaN counts as wrong."""

    label: str
    kind: CallKind
    kernel: float  # kforge's kernel from the operator's reference
    reference: float  # the operator's reference from transformers; 0 where the variant changes the mathematics


@dataclass(frozen=True, eq=False)
class _Fed:
    """Inputs by the tensor's name, and what ``transformers`` has for the outputs, in float64."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


class OperatorCheck:
    """One text of T tokens as a single prefill step, call by call, on kforge's kernels."""

    def __init__(self, model: Model, kernels: KernelSet, weights: Weights, tokens: list[int], act: str, kv: str,
                 threads: int) -> None:
        n = len(tokens)
        pages = -(-n // PAGE) + 1
        groups = len(CacheLayout.of(model.config).windows)  # all on the same pages, for each layer is checked alone
        limits = StepLimits(n, n, pages, PAGE, pages * PAGE, groups)
        self._float = act == "f32" and kv == "f32"
        self._kernels, self._weights = kernels, weights
        self._buffers = Buffers(model, limits, kv)
        self._calls = with_rows(step_calls(model, StepOptions(kv=kv, page=PAGE, act=act)), kernels.rows)
        self._team = Team(threads)
        self._loaded: dict[str, Kernel] = {}
        tables = [BlockTable(list(range(pages))[::-1]) for _ in range(groups)]
        sequence = Sequence(0, tokens, n, SamplingParams(), n, tables=tables)
        self._shape = self._buffers.inputs.fill([Scheduled(sequence, 0, n, rows=n)])
        self._buffers.set_axes(self._shape)

    def calls(self, layers: range) -> list[Call]:
        """Calls of these layers, and those outside of layers."""
        return [c for c in self._calls if c.layer is None or c.layer in layers]

    def run(self, call: Call, trace: Trace) -> OperatorResult:
        operator = get(call.problem.operator)
        workload = Workload.of(call.problem, **self._buffers.dynamic(call, self._shape))
        specs, arrays = operator.tensors(workload), self._buffers.tensors(call, self._weights)
        views = {s.name: a[tuple(slice(n) for n in s.shape)] for s, a in zip(specs, arrays, strict=True)}
        for name in (s.name for s in specs if s.name.endswith(("_cache", "_scale"))):
            views[name][...] = 0
        fed = self._feed(call, trace, views)
        for name, values in fed.inputs.items():
            views[name][...] = values
        # Copies, since a cache or a residual is written to; not of weights.
        inputs = {s.name: views[s.name].copy() if s.dtype.value != "u8" else views[s.name]
                  for s in specs if s.role is not Role.OUT}
        inputs |= zip(operator.scalar_names, self._buffers.scalars(call), strict=True)
        for spec in specs:  # an output that was not written shows; a residual may share the output's memory
            if spec.role is Role.OUT and "residual" not in inputs and spec.dtype.value == "f32":
                views[spec.name][...] = np.nan
        self._launch(call, arrays)
        bounds = operator.reference(workload, inputs)
        kernel = max(distance(_wide(views[n], n, call), b.reference, b.bound) for n, b in bounds.items())
        reference = max((distance(fed.outputs[n], b.reference, b.bound) for n, b in bounds.items()
                         if self._float and n in fed.outputs), default=0.0)
        return OperatorResult(call.label, call.kind, kernel, reference)

    def close(self) -> None:
        self._team.close()

    def _launch(self, call: Call, arrays: tuple[np.ndarray, ...]) -> None:
        chosen = self._kernels.choose(call.problem, self._buffers.dynamic(call, self._shape))
        if chosen.candidate_hash not in self._loaded:
            self._loaded[chosen.candidate_hash] = Kernel(chosen.image)
        with Program(self._team) as program:
            program.add(self._loaded[chosen.candidate_hash], arrays, self._buffers.axes(call),
                        self._buffers.scalars(call), label=call.label, max_axes=self._buffers.max_axes(call))
            program.run()

    def _feed(self, call: Call, trace: Trace, views: dict[str, np.ndarray]) -> _Fed:
        if call.kind in _BY_LAYER:
            layer = trace.layers[call.layer or 0]
            names, out = _BY_LAYER[call.kind]
            return _Fed({n: getattr(layer, field) for n, field in names.items()}, {"out": getattr(layer, out)})
        if call.kind in _OF_EXPERTS:
            return _feed_experts(call, trace.layers[call.layer or 0])
        last = trace.layers[-1].out
        match call.kind:
            case CallKind.EMBED:
                return _Fed({}, {"out": trace.embedded})
            case CallKind.ROPE:
                layer = trace.layers[call.layer or 0]
                copied = layer.v.astype(np.float32)  # v is copied, its bound is 0: as far as the rounded input goes
                caches = self._caches(call, layer.k, copied, views)
                return _Fed({"qkv": layer.qkv}, {"q_out": layer.q, **caches})
            case CallKind.ATTENTION:
                layer = trace.layers[call.layer or 0]
                caches = self._caches(call, layer.k, layer.v, views)
                stored = KvProblem.of(call.problem).stored(*(caches[n].astype(np.float32) for n in caches))
                return _Fed({"q": layer.q, **stored}, {"out": layer.attention})
            case CallKind.GATHER:
                return _Fed({"x": last}, {"out": last.astype(np.float32)})
            case CallKind.FINAL_NORM:
                return _Fed({"x": last}, {"out": trace.final_norm})
            case CallKind.HEAD:
                return _Fed({"x": trace.final_norm}, {"out": trace.logits})
            case CallKind.ARGMAX:
                return _Fed({"logits": trace.logits}, {"out": trace.logits.argmax(1)})
        raise NotImplementedError(f"this model's graph has a call of kind {call.kind}, which the accuracy bench lacks")

    def _caches(self, call: Call, k: np.ndarray, v: np.ndarray, views: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """float64 caches that hold k and v [T, Hkv*D] at their slots, zero elsewhere."""
        p = KvProblem.of(call.problem)
        page, offset = np.divmod(self._buffers.inputs.groups[0].slots[: len(k)], p.page)
        keys, values = (np.zeros(views[n].shape) for n in ("k_cache", "v_cache"))
        keys[page, :, :, offset] = k.reshape(-1, p.kv_heads, p.d)
        values[page, :, offset] = v.reshape(-1, p.kv_heads, p.d)
        return {"k_cache": keys, "v_cache": values}


def _feed_experts(call: Call, layer: LayerTrace) -> _Fed:
    """Of the calls of a layer's mixture of experts; who has which slot is counted here from the ids."""
    e = layer.experts
    assert e
    slots = grouped(e.ids, e.router.shape[1])
    order = {"order": slots.order, "expert_start": slots.start}
    match call.kind:
        case CallKind.ROUTER:
            return _Fed({"x": layer.ffn_norm}, {"out": e.router})
        case CallKind.ROUTE:
            return _Fed({"logits": e.router}, {"ids": e.ids, "weights": e.weights, **order})
        case CallKind.EXPERT_GATE_UP:
            return _Fed({"x": layer.ffn_norm, **order}, {"out": layer.ff})
        case CallKind.EXPERT_DOWN:
            return _Fed({"x": layer.ff, **order}, {"out": e.slots})
        case _:
            return _Fed({"x": e.slots, "weights": e.weights, "out": layer.after_attention}, {"out": layer.out})


def distance(got: np.ndarray, wanted: np.ndarray, bound: np.ndarray) -> float:
    """Largest |got - wanted| in units of the bound; where the bound is 0 equality counts 0, anything else infinity."""
    error = np.abs(got.astype(np.float64) - wanted)
    if not np.isfinite(error).all():
        return float("nan")
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(error == 0, 0.0, error / bound).max())


def _wide(array: np.ndarray, name: str, call: Call) -> np.ndarray:
    if name.endswith("_cache") and array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array

