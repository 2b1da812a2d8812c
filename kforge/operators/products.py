"""Activations times a weight in float64, with the error that float32 arithmetic may make: what ``linear`` and
``moe_linear`` are held against."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kforge.operators import numerics
from kforge.operators.base import Bound
from kforge.operators.weights import QuantizedWeight

if TYPE_CHECKING:
    import numpy as np

_WEIGHTS_AT_ONCE = 1 << 19  # widened to float64 at once, so that they stay in cache


class Gate(StrEnum):
    """What makes one output of a gate and an up row. The order is that of the order specification's codes."""

    NONE = "none"
    SILU = "silu_gate"
    SWIGLU_OAI = "swiglu_oai"

    @property
    def code(self) -> int:
        return list(Gate).index(self)


@dataclass(frozen=True, eq=False)
class Sums:
    """float64 [M, N]: sums without any rounding, and how far a float32 evaluation of each may be off."""

    exact: np.ndarray
    error: np.ndarray


def sums(x: np.ndarray, weight: QuantizedWeight, *, act: str, bias: np.ndarray | None) -> Sums:
    """x float32 [M, K] times weight [N, K], plus bias [N]. Unless ``act`` is f32 x is rounded or quantised first, as
    declared."""
    import numpy as np

    traits, k = weight.format.traits, weight.k
    wide, lost = (numerics.rounded_bf16(x) if act == "bf16" else x).astype(np.float64), k
    terms = (wide != 0).sum(axis=1, keepdims=True)
    if act not in ("f32", "bf16"):
        quantized = numerics.quantize_a8(x, act)
        wide, lost = quantized.exact(), 127 * k << traits.bits
        groups = quantized.q.reshape(*quantized.d.shape, -1).any(axis=2).sum(axis=1, keepdims=True)
        terms = 2 * groups * (32 // traits.group)
    exact, error = np.empty((2, len(x), weight.n))
    size = np.abs(wide).astype(np.float32)
    step = max(1, _WEIGHTS_AT_ONCE // k)
    for first in range(0, weight.n, step):
        part = _WideWeight.of(weight.rows(first, first + step))
        with np.errstate(invalid="ignore", over="ignore"):
            exact[:, first:first + step] = wide @ part.exact.T
            error[:, first:first + step] = size @ part.size.T
    if bias is not None:
        exact += bias
        error += np.abs(bias)
    return Sums(exact, numerics.sum_error(terms) * error + numerics.underflow(lost))


def gated(gate: Gate, made: Sums) -> Bound:
    """Sums of the gate rows, then of as many up rows, as outputs: the bounds of ``Linear`` and ``MoeLinear``."""
    half = made.exact.shape[1] // 2
    gates, ups = Sums(made.exact[:, :half], made.error[:, :half]), Sums(made.exact[:, half:], made.error[:, half:])
    return _silu_gate(gates, ups) if gate is Gate.SILU else _swiglu_oai(gates, ups)


def _silu_gate(gate: Sums, up: Sums) -> Bound:
    import numpy as np

    activated = numerics.silu(gate.exact)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = activated * up.exact
        error = np.abs(up.exact) * 1.1 * gate.error + np.abs(activated) * up.error + 1.1 * gate.error * up.error
        error += numerics.silu_error(gate.exact) * np.abs(exact)
        error += numerics.underflow(1 + np.abs(up.exact) + np.abs(gate.exact * up.exact))
    return Bound(exact, error)


def _swiglu_oai(gate: Sums, up: Sums) -> Bound:
    """Clamping makes no error larger. An infinite sum is sure, and is clamped to a finite value."""
    import numpy as np

    gate, up = (Sums(s.exact, np.where(np.isinf(s.exact), 0.0, s.error)) for s in (gate, up))
    with np.errstate(invalid="ignore", over="ignore"):
        g = np.minimum(gate.exact, numerics.SWIGLU_LIMIT)
        factor = np.clip(up.exact, -numerics.SWIGLU_LIMIT, numerics.SWIGLU_LIMIT) + 1
        activated = numerics.silu(numerics.SWIGLU_ALPHA * g) / numerics.SWIGLU_ALPHA
        exact = activated * factor
        error = np.abs(factor) * 1.1 * gate.error + np.abs(activated) * up.error + 1.1 * gate.error * up.error
        error += numerics.swiglu_oai_error(g) * np.abs(exact)
        error += numerics.underflow(2 + np.abs(factor) + np.abs(g * factor))
    return Bound(exact, error)


@dataclass(frozen=True, eq=False)
class _WideWeight:
    """float64 [N, K]: the weight without any rounding; float32 [N, K]: the size of its parts."""

    exact: np.ndarray
    size: np.ndarray

    @classmethod
    def of(cls, weight: QuantizedWeight) -> _WideWeight:
        import numpy as np

        traits = weight.format.traits
        if not weight.format.quantized:
            exact = weight.dequantize().astype(np.float64)
            return cls(exact, np.abs(exact).astype(np.float32))
        signed = weight.signed().reshape(weight.n, -1, traits.group).astype(np.float64)
        product = signed * weight.scales()[:, :, None]
        minima = weight.minima()[:, :, None] if traits.has_min else np.zeros((weight.n, 1, 1), np.float32)
        size = np.abs(product).astype(np.float32) + np.abs(minima)
        return cls((product + minima).reshape(weight.n, weight.k), size.reshape(weight.n, weight.k))
