"""``rms_norm``, with the residual added first when there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Role, TensorSpec
from kforge.operators.numerics import U

if TYPE_CHECKING:
    import numpy as np


class RmsNorm(Operator):
    """out = h / sqrt(mean(h^2) + eps) * weight, with h = x or h = residual = residual + x.

    Bound. The sum of n non-zero squares has the relative error sum_error(n), all terms being positive, and a root
    halves it; half of that of mean and eps, then root, reciprocal and the two products add 5u. With a residual, h
    carries a relative rounding of u itself, and its squares one of 2u, which the root halves. Twice these 7u, and what
    the two products by r = 1 / sqrt(...) and the weight, in any order, lose to underflow:
    ``|out - ref| <= (sum_error(n) / 2 + 14u) |ref| + underflow(1 + r + |weight|)``. For the residual: ``u |ref|``.
    Squares that underflow vanish beside eps. A NaN makes its token's outputs NaN; an infinity is NaN where it stands
    and zero elsewhere.
    """

    name = "rms_norm"
    static_axes = ("H", "residual")
    dynamic_axes = ("T",)
    row_axis = "T"
    scalar_names = ("eps",)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        t, h = workload.axes["T"], workload.problem.int("H")
        specs = [TensorSpec("x", DType.F32, (t, h), Role.IN), TensorSpec("weight", DType.F32, (h,), Role.IN)]
        if workload.problem.int("residual"):
            specs.append(TensorSpec("residual", DType.F32, (t, h), Role.INOUT))
        return (*specs, TensorSpec("out", DType.F32, (t, h), Role.OUT))

    def scalars(self, workload: Workload) -> tuple[float, ...]:
        return (1e-5,)

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        t, h = workload.axes["T"], workload.problem.int("H")
        rng = np.random.default_rng([seed, 2])
        weight = rng.uniform(0.5, 1.5, h) * rng.choice([-1, 1], h)
        made = {"x": numerics.draw(rng, t, h, distribution), "weight": weight.astype(np.float32)}
        if distribution is not Distribution.NORMAL:  # which is what timed calls have
            made["eps"] = np.array(10 ** rng.uniform(-6.5, -4))
        if workload.problem.int("residual"):
            made["residual"] = numerics.draw(rng, t, h, distribution)
        return made

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        h = inputs["x"].astype(np.float64)
        bounds = {}
        if "residual" in inputs:
            with np.errstate(invalid="ignore"):
                h = h + inputs["residual"]
            bounds["residual"] = Bound(h, U * np.abs(h))
        r = 1 / np.sqrt((h * h).mean(axis=1, keepdims=True) + self.given_scalars(workload, inputs)[0])
        with np.errstate(invalid="ignore"):
            exact = h * r * inputs["weight"]
        error = numerics.sum_error((h != 0).sum(axis=1, keepdims=True)) / 2 + 14 * U
        lost = numerics.underflow(1 + r + np.abs(inputs["weight"]))
        return {**bounds, "out": Bound(exact, error * np.abs(exact) + lost)}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        out = np.empty_like(inputs["x"])
        residual = np.array(inputs["residual"]) if "residual" in inputs else None
        eps = self.given_scalars(workload, inputs)[0]
        spec.call("rms_norm", *out.shape, eps, inputs["x"], inputs["weight"], residual, out)
        return {"out": out} if residual is None else {"residual": residual, "out": out}

    def cost(self, workload: Workload) -> Cost:
        specs = self.tensors(workload)
        moved = sum(t.bytes * (2 if t.role is Role.INOUT else 1) for t in specs)
        return Cost(0, moved, (("fp32_fma", 4 * workload.axes["T"] * workload.problem.int("H")),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"T": buckets.point(buckets.TOKENS, dynamic["T"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, T=t)
                for t in buckets.inside(buckets.TOKENS, workload.axes["T"], seed)]
