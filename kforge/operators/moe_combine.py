"""``moe_combine``: what the experts of a token gave, weighted, onto the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Part, Role, TensorSpec
from kforge.operators.numerics import U

if TYPE_CHECKING:
    import numpy as np


class MoeCombine(Operator):
    """out[t] += sum over j of weights[t, j] * x[t * k + j]: row t * k + j of x is what the j-th expert of token t gave.

    Bound. With ``scale = sum_j |w_j x_j|`` and n its non-zero terms, then one addition to what was there:
    ``|out - ref| <= u |ref| + sum_error(n) scale + 2u |before| + underflow(k)``.

    A NaN, an infinity or an infinity times zero comes out as IEEE arithmetic has it.
    """

    name = "moe_combine"
    static_axes = ("H", "k")
    dynamic_axes = ("T",)
    row_axis = "T"

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        h, k, t = workload.problem.int("H"), workload.problem.int("k"), workload.axes["T"]
        return (TensorSpec("x", DType.F32, (t * k, h), Role.IN), TensorSpec("weights", DType.F32, (t, k), Role.IN),
                TensorSpec("out", DType.F32, (t, h), Role.INOUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        """Weights as a softmax gives them. For CANCEL they are equal, and every second expert of a token undoes what
        the one before it gave."""
        import numpy as np

        h, k, t = workload.problem.int("H"), workload.problem.int("k"), workload.axes["T"]
        rng = np.random.default_rng([seed, 12])
        x = numerics.draw(rng, t * k, h, distribution)
        weights = np.exp(rng.standard_normal((t, k), np.float32))
        if distribution is Distribution.CANCEL:
            slots = x.reshape(t, k, h)
            slots[:, 1::2] = -slots[:, :k - 1:2]
            weights[:] = 1
        weights /= weights.sum(axis=1, keepdims=True)
        return {"x": x, "weights": weights, "out": numerics.draw(rng, t, h, distribution)}

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        h, k = workload.problem.int("H"), workload.problem.int("k")
        before = inputs["out"].astype(np.float64)
        with np.errstate(invalid="ignore"):
            terms = inputs["x"].reshape(-1, k, h) * inputs["weights"][:, :, None].astype(np.float64)
            exact = terms.sum(axis=1) + before
            error = numerics.sum_error((terms != 0).sum(axis=1)) * np.abs(terms).sum(axis=1) + 2 * U * np.abs(before)
        return {"out": Bound(exact, U * np.abs(exact) + error + numerics.underflow(k))}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        h, k, t = workload.problem.int("H"), workload.problem.int("k"), workload.axes["T"]
        out = np.array(inputs["out"])
        spec.call("moe_combine", t, k, h, inputs["x"], inputs["weights"], out)
        return {"out": out}

    def part(self, workload: Workload, inputs: Arrays, rows: np.ndarray) -> Part:
        """Tokens, with all rows of x that are theirs."""
        import numpy as np

        k = workload.problem.int("k")
        slots = (rows[:, None] * k + np.arange(k)).reshape(-1)
        return Part(Workload.of(workload.problem, workload.count, workload.phase, T=len(rows)),
                    {"x": inputs["x"][slots], "weights": inputs["weights"][rows], "out": inputs["out"][rows]})

    def cost(self, workload: Workload) -> Cost:
        h, k, t = workload.problem.int("H"), workload.problem.int("k"), workload.axes["T"]
        moved = sum(s.bytes * (2 if s.role is Role.INOUT else 1) for s in self.tensors(workload))
        return Cost(0, moved, (("fp32_fma", t * h * (2 * k + 1)),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"T": buckets.point(buckets.TOKENS, dynamic["T"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, T=t)
                for t in buckets.inside(buckets.TOKENS, workload.axes["T"], seed)]
