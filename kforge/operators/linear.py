"""``linear``: activations times a packed weight, with epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType, WeightFormat
from kforge.core.layout import Layout
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, layouts, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Residency, Role, TensorSpec
from kforge.operators.numerics import U
from kforge.operators.products import Gate, gated, sums
from kforge.operators.random_weights import with_denormals
from kforge.operators.weights import QuantizedWeight

if TYPE_CHECKING:
    import numpy as np


ACTS = ("f32", "a8", "a8_token")  # by the order specification's codes
BF16 = "bf16"  # activations rounded to bf16 before an f32 product: any weight takes them; for matrix units
_UNITS = {"f32": "fp32_fma", BF16: "bf16_dot"}


def peak_of(act: str) -> str:
    """The peak that a product with these activations is held against."""
    return _UNITS.get(act, "int8_dot")


def specified(x: np.ndarray, act: str) -> tuple[np.ndarray, int]:
    """Activations and the code of ``act`` as the order specification takes them: bf16 is rounding, then f32."""
    if act != BF16:
        return x, ACTS.index(act)
    return numerics.rounded_bf16(x), ACTS.index("f32")


@dataclass(frozen=True)
class LinearProblem:
    """The static attributes of a ``linear``, typed."""

    k: int
    n: int
    format: WeightFormat
    act: str
    gate: Gate
    residual: bool
    bias: bool
    layout: Layout

    @classmethod
    def of(cls, problem: Problem) -> LinearProblem:
        epilogue, act = problem.str("epilogue"), problem.str("act")
        format = WeightFormat(problem.str("weight"))
        if epilogue not in ("none", "residual", "silu_gate"):
            raise ValueError(f"{problem.key}: epilogue is none, residual or silu_gate")
        require_act(problem, format, act)
        layout = layouts.panel_layout(problem.int("rows"), epilogue == "silu_gate")
        gate = Gate.NONE if epilogue == "residual" else Gate(epilogue)
        return cls(problem.int("K"), problem.int("N"), format, act, gate, epilogue == "residual",
                   bool(problem.int("bias")), layout)

    @property
    def width(self) -> int:
        """Columns of the output."""
        return self.n if self.gate is Gate.NONE else self.n // 2


class Linear(Operator):
    """out = x w^T (+ bias) (+ residual | gated by SiLU). w is [N, K], packed.

    Bound. With d_w, u and m the weight's parts, ``scale = sum_k |x| (|d_w (u - offset)| + |m|) + |bias|``; for ``a8``
    x is the *quantised* activation, which the reference takes over to the bit, so that only accumulation is in the
    bound; for ``a8_token``, whose group is all of K, and for ``bf16``, which rounds each x, likewise. The sum has as
    many terms as a row of x has non-zero values (f32, bf16) or, as integer dot products are exact, two for each group
    with a non-zero integer (a8, a8_token; q6_k: four): ``n`` below. A few further roundings (of the weight, of the
    integer sum, of d_w d_a, of the bias) are in the constant of ``sum_error``. Of what underflows, f32 loses K
    products; int8 activations lose d_w d_a, an error that the integers multiply, 127 times the largest code for each k:

        E = sum_error(n) scale + underflow(K, or 127 codes K);   |out - ref| <= u |ref| + E           (none)
        u |ref| + E + 2u |residual|                                                             (residual)
        |up| 1.1 E_gate + |silu(gate)| E_up + 1.1 E_gate E_up + silu_error(gate) |ref|   (silu_gate, |silu'| <= 1.1)

    A NaN or an infinity in x makes the outputs of its token what IEEE arithmetic makes them, for int8 always NaN.
    """

    name = "linear"
    version = 2  # 2: a8 passes NaN and infinity on
    static_axes = ("K", "N", "weight", "act", "epilogue", "bias", "rows")
    dynamic_axes = ("M",)
    row_axis = "M"

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        p, m = LinearProblem.of(workload.problem), workload.axes["M"]
        packed = layouts.packed_bytes(p.format, p.n, p.k, p.layout)
        specs = [TensorSpec("x", DType.F32, (m, p.k), Role.IN),
                 TensorSpec("w", DType.U8, (packed,), Role.IN, Residency.STREAMED, p.layout)]
        if p.bias:
            specs.append(TensorSpec("bias", DType.F32, (p.n,), Role.IN))
        if p.residual:
            specs.append(TensorSpec("residual", DType.F32, (m, p.n), Role.IN))
        return (*specs, TensorSpec("out", DType.F32, (m, p.width), Role.OUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        p, m = LinearProblem.of(workload.problem), workload.axes["M"]
        rng = np.random.default_rng([seed, 1])
        weight = layouts.random(p.format, p.n, p.k, seed)
        if distribution in (Distribution.CANCEL, Distribution.ROWS):
            weight = paired(weight)
        if distribution in (Distribution.MIXED, Distribution.ROWS):
            weight = with_denormals(weight, 2 if distribution is Distribution.MIXED else 8)
        made = {"x": numerics.draw(rng, m, p.k, distribution), "w": layouts.pack(weight, p.layout)}
        if p.bias:
            made["bias"] = rng.standard_normal(p.n, np.float32)
        if p.residual:
            made["residual"] = numerics.normals(rng, (m, p.n))
        return made

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        p = LinearProblem.of(workload.problem)
        weight = layouts.unpack(inputs["w"], p.format, p.n, p.k, p.layout)
        made = sums(inputs["x"], weight, act=p.act, bias=inputs.get("bias"))
        if p.gate is not Gate.NONE:
            return {"out": gated(p.gate, made)}
        exact, error = made.exact, made.error
        if p.residual:
            exact += inputs["residual"]
            error += 2 * U * np.abs(inputs["residual"])
        return {"out": Bound(exact, U * np.abs(exact) + error)}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        p, m = LinearProblem.of(workload.problem), workload.axes["M"]
        out = np.empty((m, p.width), np.float32)
        x, act = specified(inputs["x"], p.act)
        spec.call("linear", list(WeightFormat).index(p.format), int(p.layout["rows"]), act, p.gate.code,
                  m, p.n, p.k, x, inputs["w"], inputs.get("bias"), inputs.get("residual"), out)
        return {"out": out}

    def cost(self, workload: Workload) -> Cost:
        p, m = LinearProblem.of(workload.problem), workload.axes["M"]
        specs = self.tensors(workload)
        streamed = sum(t.bytes for t in specs if t.residency is Residency.STREAMED)
        return Cost(streamed, sum(t.bytes for t in specs) - streamed,
                    ((peak_of(p.act), 2 * m * p.n * p.k),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"M": buckets.point(buckets.TOKENS, dynamic["M"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, M=m)
                for m in buckets.inside(buckets.TOKENS, workload.axes["M"], seed)]


def require_act(problem: Problem, format: WeightFormat, act: str) -> None:
    """Raises ValueError for activations that a product with a weight of this format is not defined for."""
    if act not in (*format.acts, BF16):
        why = "" if format.quantized else ", for int8 activations need a weight of integers"
        raise ValueError(f"{problem.key}: with a weight of {format} act is {', '.join(format.acts)} or {BF16}{why}")


def paired(weight: QuantizedWeight) -> QuantizedWeight:
    """Equal integers where the CANCEL distribution has +x and -x: all terms of an output cancel."""
    import numpy as np

    first, second = np.array(numerics.pair_places(weight.k)).T
    values = np.array(weight.values)
    values[:, second] = values[:, first]
    return QuantizedWeight(weight.format, values, weight.d, weight.m, weight.sc, weight.mn)
