"""``moe_linear``: every token times the matrices of its experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType, WeightFormat
from kforge.core.layout import Layout
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, experts, layouts, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Part, Residency, Role, TensorSpec
from kforge.operators.experts import Crowding, Grouping, grouped
from kforge.operators.linear import paired, peak_of, require_act, specified
from kforge.operators.numerics import U
from kforge.operators.products import Gate, gated, sums
from kforge.operators.random_weights import with_denormals

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class MoeLinearProblem:
    """The static attributes of a ``moe_linear``, typed. ``share``: slots that one row of x is for."""

    experts: int
    top: int
    share: int
    k: int
    n: int
    format: WeightFormat
    act: str
    gate: Gate
    bias: bool
    layout: Layout

    @classmethod
    def of(cls, problem: Problem) -> MoeLinearProblem:
        act, source, count, top = problem.str("act"), problem.str("input"), problem.int("E"), problem.int("k")
        format = WeightFormat(problem.str("weight"))
        if problem.str("epilogue") not in list(Gate) or source not in ("token", "slot"):
            raise ValueError(f"{problem.key}: epilogue is {', '.join(Gate)}, input is token or slot")
        require_act(problem, format, act)
        if not 1 <= top <= count:
            raise ValueError(f"{problem.key}: k of E experts are chosen")
        gate = Gate(problem.str("epilogue"))
        layout = layouts.panel_layout(problem.int("rows"), gate is not Gate.NONE)
        return cls(count, top, top if source == "token" else 1, problem.int("K"), problem.int("N"), format, act, gate,
                   bool(problem.int("bias")), layout)

    @property
    def width(self) -> int:
        """Columns of the output."""
        return self.n if self.gate is Gate.NONE else self.n // 2


class MoeLinear(Operator):
    """out[s] = x[row of s] w_e^T (+ bias_e) (gated), for every slot s = t * k + j, with e the j-th expert of token t.

    ``order`` and ``expert_start`` are those of ``moe_route``: expert e has the slots order[expert_start[e]] to
    order[expert_start[e + 1] - 1], possibly none. With ``input`` = token slot s reads row s / k of x, with slot row s.
    w holds the experts' matrices [N, K] one behind the other, each packed for itself.

    Bound. For each slot that of ``linear``, E being its error without an epilogue. With swiglu_oai, where
    g = min(gate, 7), f = clamp(up, -7, 7) + 1 and a = g sigmoid(1.702 g), whose slope is at most 1.1:

        |f| 1.1 E_gate + |a| E_up + 1.1 E_gate E_up + swiglu_oai_error(g) |ref| + underflow(2 + |f| + |g f|)

    A NaN or an infinity in x makes the outputs of its slots what IEEE arithmetic makes them, for a8 always NaN.
    """

    name = "moe_linear"
    static_axes = ("E", "k", "input", "K", "N", "weight", "act", "epilogue", "bias", "rows")
    dynamic_axes = ("T",)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        p, t = MoeLinearProblem.of(workload.problem), workload.axes["T"]
        slots = t * p.top
        packed = experts.packed_bytes(p.experts, p.format, p.n, p.k, p.layout)
        share = experts.touched(t, p.experts, p.top) / p.experts
        specs = [TensorSpec("x", DType.F32, (slots // p.share, p.k), Role.IN),
                 TensorSpec("order", DType.I32, (slots,), Role.IN),
                 TensorSpec("expert_start", DType.I32, (p.experts + 1,), Role.IN),
                 TensorSpec("w", DType.U8, (packed,), Role.IN, Residency.STREAMED, p.layout, share)]
        if p.bias:
            specs.append(TensorSpec("bias", DType.F32, (p.experts, p.n), Role.IN))
        return (*specs, TensorSpec("out", DType.F32, (slots, p.width), Role.OUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        p, t = MoeLinearProblem.of(workload.problem), workload.axes["T"]
        rng = np.random.default_rng([seed, 13])
        crowding = Crowding.of(seed, distribution)
        slots = grouped(experts.draw(rng, t, p.experts, p.top, crowding), p.experts)
        size = layouts.packed_bytes(p.format, p.n, p.k, p.layout)
        w = np.empty(p.experts * size, np.uint8)
        for e in range(p.experts):
            weight = layouts.random(p.format, p.n, p.k, int(rng.integers(1 << 60)))
            if distribution in (Distribution.CANCEL, Distribution.ROWS):
                weight = paired(weight)
            if distribution in (Distribution.MIXED, Distribution.ROWS):
                weight = with_denormals(weight, 2 if distribution is Distribution.MIXED else 8)
            w[e * size:(e + 1) * size] = layouts.pack(weight, p.layout)
        made = {"x": numerics.draw(rng, t * p.top // p.share, p.k, distribution), "order": slots.order,
                "expert_start": slots.start, "w": w}
        if p.bias:
            made["bias"] = rng.standard_normal((p.experts, p.n), np.float32)
        return made

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        p = MoeLinearProblem.of(workload.problem)
        slots = Grouping(inputs["order"], inputs["expert_start"])
        exact, bound = np.empty((2, len(slots.order), p.width))
        for e in range(p.experts):
            if not (mine := slots.slots(e)).size:
                continue
            weight = experts.matrix(inputs["w"], e, p.format, p.n, p.k, p.layout)
            bias = inputs["bias"][e] if p.bias else None
            made = sums(inputs["x"][mine // p.share], weight, act=p.act, bias=bias)
            if p.gate is Gate.NONE:
                exact[mine], bound[mine] = made.exact, U * np.abs(made.exact) + made.error
            else:
                ours = gated(p.gate, made)
                exact[mine], bound[mine] = ours.reference, ours.bound
        return {"out": Bound(exact, bound)}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        p = MoeLinearProblem.of(workload.problem)
        out = np.empty((workload.axes["T"] * p.top, p.width), np.float32)
        x, act = specified(inputs["x"], p.act)
        spec.call("moe_linear", list(WeightFormat).index(p.format), int(p.layout["rows"]), act,
                  p.gate.code, p.experts, p.share, p.n, p.k, x, inputs["order"],
                  inputs["expert_start"], inputs["w"],
                  layouts.packed_bytes(p.format, p.n, p.k, p.layout), inputs.get("bias"), out)
        return {"out": out}

    def part(self, workload: Workload, inputs: Arrays, rows: np.ndarray) -> Part:
        """Slots, each with a row of x of its own."""
        p = MoeLinearProblem.of(workload.problem)
        problem = Problem.of(self.name, **{**dict(workload.problem.static), "k": 1, "input": "slot"})
        slots = grouped(Grouping(inputs["order"], inputs["expert_start"]).ids[rows], p.experts)
        return Part(Workload.of(problem, workload.count, workload.phase, T=len(rows)),
                    {**inputs, "x": inputs["x"][rows // p.share], "order": slots.order, "expert_start": slots.start})

    def cost(self, workload: Workload) -> Cost:
        """Of the weights, those of the experts that are chosen when all choices are equally likely."""
        p, t = MoeLinearProblem.of(workload.problem), workload.axes["T"]
        chosen = experts.touched(t, p.experts, p.top)
        specs = {s.name: s.bytes for s in self.tensors(workload)}
        streamed = round(chosen * layouts.packed_bytes(p.format, p.n, p.k, p.layout))
        hot = sum(size for name, size in specs.items() if name not in ("w", "bias"))
        hot += round(chosen * 4 * p.n) if p.bias else 0
        return Cost(streamed, hot, ((peak_of(p.act), 2 * t * p.top * p.n * p.k),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"T": buckets.point(buckets.TOKENS, dynamic["T"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, T=t)
                for t in buckets.inside(buckets.TOKENS, workload.axes["T"], seed)]
