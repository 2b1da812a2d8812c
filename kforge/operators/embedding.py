"""``embedding``: rows of a packed table, dequantised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType, WeightFormat
from kforge.core.layout import Layout
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, layouts, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Residency, Role, TensorSpec
from kforge.operators.numerics import U
from kforge.operators.random_weights import with_denormals

if TYPE_CHECKING:
    import numpy as np


def _format(problem: Problem) -> WeightFormat:
    return WeightFormat(problem.str("weight"))


def _layout(problem: Problem) -> Layout:
    return layouts.panel_layout(problem.int("rows"))


class Embedding(Operator):
    """out[t] = table[ids[t]]. The table is packed as a weight of ``linear`` is, so that a tied head shares it.

    Bound. One rounding, or two for kernels without an FMA, of at most ``u (|d (u - offset)| + |m|)`` each, and twice
    that; zero where there is nothing to round (float formats, formats without a minimum). float16 scales are far from
    float32's underflow.
    """

    name = "embedding"
    static_axes = ("V", "H", "weight", "rows")
    dynamic_axes = ("T",)
    row_axis = "T"

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        problem, t = workload.problem, workload.axes["T"]
        v, h = problem.int("V"), problem.int("H")
        packed = layouts.packed_bytes(_format(problem), v, h, _layout(problem))
        return (TensorSpec("ids", DType.I32, (t,), Role.IN),
                TensorSpec("table", DType.U8, (packed,), Role.IN, Residency.STREAMED, _layout(problem)),
                TensorSpec("out", DType.F32, (t, h), Role.OUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        problem, t = workload.problem, workload.axes["T"]
        v, h = problem.int("V"), problem.int("H")
        rng = np.random.default_rng([seed, 3])
        ids = rng.integers(0, v, t).astype(np.int32)
        if t > 2 or rng.integers(2):  # the edges of the table, at any place and not always
            ids[rng.permutation(t)[:2]] = rng.permutation([v - 1, 0])[:t]
        table = layouts.random(_format(problem), v, h, seed)
        if distribution in (Distribution.MIXED, Distribution.DENORMAL):
            table = with_denormals(table)
        return {"ids": ids, "table": layouts.pack(table, _layout(problem))}

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        problem = workload.problem
        table = layouts.unpack(inputs["table"], _format(problem), problem.int("V"), problem.int("H"), _layout(problem))
        rows = table.take(inputs["ids"])
        traits = _format(problem).traits
        if not traits.has_min:
            exact = rows.dequantize().astype(np.float64)
            return {"out": Bound(exact, np.zeros_like(exact))}
        product = rows.values.reshape(rows.n, -1, traits.group) * rows.scales()[:, :, None].astype(np.float64)
        minima = rows.minima()[:, :, None]
        shape = (rows.n, rows.k)
        return {"out": Bound((product + minima).reshape(shape),
                             (4 * U * (np.abs(product) + np.abs(minima))).reshape(shape))}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        problem, t = workload.problem, workload.axes["T"]
        out = np.empty((t, problem.int("H")), np.float32)
        spec.call("embedding", list(WeightFormat).index(_format(problem)), problem.int("rows"), t, problem.int("V"),
                  problem.int("H"), inputs["ids"], inputs["table"], out)
        return {"out": out}

    def cost(self, workload: Workload) -> Cost:
        t, h = workload.axes["T"], workload.problem.int("H")
        return Cost(round(t * h * _format(workload.problem).traits.bits_per_weight / 8), 4 * t * (1 + h), ())

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"T": buckets.point(buckets.TOKENS, dynamic["T"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, T=t)
                for t in buckets.inside(buckets.TOKENS, workload.axes["T"], seed)]
