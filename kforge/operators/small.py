"""The small operators: ``silu_mul``, ``gather_rows``, ``argmax``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Role, TensorSpec

if TYPE_CHECKING:
    import numpy as np


class SiluMul(Operator):
    """out = silu(gate) * up, gate first in ``gate_up``.

    Bound. ``silu_error(gate) |ref|`` (numerics.py), and what underflows: silu itself, whose error ``up`` multiplies, or
    in x sigmoid(x) the sigmoid: ``underflow(1 + |up| + |gate up|)``. A NaN, an infinity or an infinity times zero comes
    out as IEEE arithmetic has it.
    """

    name = "silu_mul"
    static_axes = ("I",)
    dynamic_axes = ("T",)
    row_axis = "T"

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        t, i = workload.axes["T"], workload.problem.int("I")
        return (TensorSpec("gate_up", DType.F32, (t, 2 * i), Role.IN), TensorSpec("out", DType.F32, (t, i), Role.OUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        """By lot the gate or the other factor follows the distribution. A NaN there stands beside a gate so far below
        zero that a kernel may think its product known."""
        import numpy as np

        t, i = workload.axes["T"], workload.problem.int("I")
        rng = np.random.default_rng([seed, 6])
        kinds = [distribution, Distribution.NORMAL]
        if rng.integers(2):
            kinds = [Distribution.LARGE if distribution is Distribution.NAN else Distribution.NORMAL, distribution]
        gate, up = (numerics.draw(rng, t, i, kind) for kind in kinds)
        return {"gate_up": np.concatenate([gate * np.float32(4), up], axis=1)}

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        gate, up = np.split(inputs["gate_up"].astype(np.float64), 2, axis=1)
        with np.errstate(invalid="ignore"):
            exact = numerics.silu(gate) * up
            lost = numerics.underflow(1 + np.abs(up) + np.abs(gate * up))
            return {"out": Bound(exact, numerics.silu_error(gate) * np.abs(exact) + lost)}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        t, i = workload.axes["T"], workload.problem.int("I")
        out = np.empty((t, i), np.float32)
        spec.call("silu_mul", t, i, inputs["gate_up"], out)
        return {"out": out}

    def cost(self, workload: Workload) -> Cost:
        elements = workload.axes["T"] * workload.problem.int("I")
        return Cost(0, sum(t.bytes for t in self.tensors(workload)), (("fp32_fma", 20 * elements),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"T": buckets.point(buckets.TOKENS, dynamic["T"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, T=t)
                for t in buckets.inside(buckets.TOKENS, workload.axes["T"], seed)]


class GatherRows(Operator):
    """out[r] = x[index[r]], bit for bit: the bound is zero."""

    name = "gather_rows"
    static_axes = ("H",)
    dynamic_axes = ("R", "T")
    row_axis = "R"

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        axes, h = workload.axes, workload.problem.int("H")
        return (TensorSpec("x", DType.F32, (axes["T"], h), Role.IN),
                TensorSpec("index", DType.I32, (axes["R"],), Role.IN),
                TensorSpec("out", DType.F32, (axes["R"], h), Role.OUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        axes = workload.axes
        rng = np.random.default_rng([seed, 7])
        index = rng.integers(0, axes["T"], axes["R"]).astype(np.int32)
        if axes["R"] > 1 or not rng.integers(4):
            index[rng.integers(0, axes["R"])] = axes["T"] - 1
        return {"x": numerics.draw(rng, axes["T"], workload.problem.int("H"), distribution), "index": index}

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        exact = inputs["x"][inputs["index"]].astype(np.float64)
        return {"out": Bound(exact, np.zeros_like(exact))}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        """Nothing is rounded, so there is no order to fix."""
        return {"out": inputs["x"][inputs["index"]]}

    def cost(self, workload: Workload) -> Cost:
        return Cost(0, 8 * workload.axes["R"] * workload.problem.int("H") + 4 * workload.axes["R"], ())

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        """The rows that are not gathered do not matter."""
        rows = buckets.point(buckets.TOKENS, dynamic["R"])
        return {"R": rows, "T": rows}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        rows = buckets.inside(buckets.TOKENS, workload.axes["R"], seed)
        return [Workload.of(workload.problem, workload.count, workload.phase, R=r, T=r if 1 < r == rows[0] else r + 50)
                for r in rows]


class Argmax(Operator):
    """out[r] = the lowest index of the largest logit of row r; exact.

    A NaN is never the largest; among nothing but NaNs the answer is 0.
    """

    name = "argmax"
    static_axes = ("V",)
    dynamic_axes = ("R",)
    row_axis = "R"

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        r, v = workload.axes["R"], workload.problem.int("V")
        return (TensorSpec("logits", DType.F32, (r, v), Role.IN), TensorSpec("out", DType.I32, (r,), Role.OUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        """In turn, from row to row and from seed to seed, a row has its maximum at its end, at its beginning, at a
        random place and up to two more times behind it, or at a random place. In a ONE_HOT row with a negative value
        zeros tie. The first row of NAN begins with one, the last of several has no number above minus infinity."""
        import numpy as np

        rng = np.random.default_rng([seed, 8])
        logits = numerics.draw(rng, workload.axes["R"], workload.problem.int("V"), distribution)
        for i, row in enumerate(logits):
            largest, where = np.nanmax(row), np.nanargmax(row)
            # Its own place is nothing to rely on: the first of three would hardly ever be near the end.
            place = (-1, 0, rng.integers(0, len(row)), rng.integers(0, len(row)))[(seed + i) % 4]
            row[where], row[place] = row[place], largest
            if (seed + i) % 4 == 2:
                row[rng.integers(place, len(row), 2)] = largest
        if distribution is Distribution.NAN:
            logits[0, 0] = np.nan
            if len(logits) > 1:
                logits[-1] = np.nan
                logits[-1, rng.integers(0, logits.shape[1]):] = rng.choice([np.nan, -np.inf])
        return {"logits": np.ascontiguousarray(logits)}

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        logits = inputs["logits"]
        largest = logits == np.fmax.reduce(logits, axis=1, keepdims=True)
        exact = np.where(largest.any(axis=1), largest.argmax(axis=1), 0).astype(np.float64)
        return {"out": Bound(exact, np.zeros_like(exact))}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        """Nothing is rounded, so there is no order to fix."""
        import numpy as np

        logits = inputs["logits"]
        numbers = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        first = numbers.argmax(axis=1)
        empty = np.isneginf(numbers.max(axis=1))  # a NaN looks like minus infinity there
        first[empty] = np.isneginf(logits[empty]).argmax(axis=1)
        return {"out": first.astype(np.int32)}

    def cost(self, workload: Workload) -> Cost:
        return Cost(0, sum(t.bytes for t in self.tensors(workload)), ())

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"R": buckets.point(buckets.TOKENS, dynamic["R"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, R=r)
                for r in buckets.inside(buckets.TOKENS, workload.axes["R"], seed)]
