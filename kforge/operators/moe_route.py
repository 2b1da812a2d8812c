"""``moe_route``: router logits to the experts of each token, their weights, and the tokens of each expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Problem, Workload
from kforge.operators import buckets, numerics, spec
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Role, TensorSpec
from kforge.operators.experts import grouped
from kforge.operators.numerics import U

if TYPE_CHECKING:
    import numpy as np

_FARTHEST = 1e4  # from the largest logit: its exponential is zero long before
_ARRANGED = frozenset({Distribution.HEAVY_TAIL, Distribution.POSITIVE, Distribution.NEGATIVE, Distribution.TINY,
                       Distribution.LARGE, Distribution.MIXED, Distribution.CANCEL})


@dataclass(frozen=True)
class RouteProblem:
    """The static attributes of a ``moe_route``, typed. ``all``: weights are parts of the softmax over all experts."""

    experts: int
    k: int
    all: bool

    @classmethod
    def of(cls, problem: Problem) -> RouteProblem:
        experts, k, style = problem.int("E"), problem.int("k"), problem.str("style")
        if style not in ("chosen", "all") or not 1 <= k <= experts:
            raise ValueError(f"{problem.key}: style is chosen or all, and k of E experts are chosen")
        return cls(experts, k, style == "all")


class MoeRoute(Operator):
    """ids[t]: the k experts with the largest logits of token t, the largest first, the lowest id among equals.
    weights[t]: their part of the softmax, over the chosen logits (``style`` = chosen) or over all of them (all).
    order: the slots t * k + j by expert, ascending within each; expert e has order[expert_start[e]] to
    order[expert_start[e + 1] - 1].

    A softmax over all experts whose chosen parts are made to sum to one (``norm_topk_prob``) is the softmax over the
    chosen ones: ``style`` = chosen.

    Bound. Ids, order and expert_start are exact. With p_j = exp(l_j - max) an exponential's relative error is
    ``delta_j = (4 |l_j - max| + 8) u`` (twice that of the difference, of a scaled argument and of the function), that
    of their sum sum_error(n) for n non-zero terms plus the mean of delta weighted by p, and the quotient rounds once:

        |w_j - ref| <= (delta_j + sum_i p_i delta_i / sum_i p_i + sum_error(n) + 2u) |ref| + underflow(2)

    A NaN counts as larger than every number, so that it is chosen, and makes all weights of its token NaN; so does
    infinity.
    """

    name = "moe_route"
    static_axes = ("E", "k", "style")
    dynamic_axes = ("T",)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        p, t = RouteProblem.of(workload.problem), workload.axes["T"]
        return (TensorSpec("logits", DType.F32, (t, p.experts), Role.IN),
                TensorSpec("ids", DType.I32, (t, p.k), Role.OUT), TensorSpec("weights", DType.F32, (t, p.k), Role.OUT),
                TensorSpec("order", DType.I32, (t * p.k,), Role.OUT),
                TensorSpec("expert_start", DType.I32, (p.experts + 1,), Role.OUT))

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        """In turn from seed to seed, but where that would hide what a distribution is for: its own values; columns
        drawn with repetition, so that many are equal; the same k experts far above all others in every row, anywhere
        or neighbours at either end. The rows of zeros of SPARSE begin with a negative one."""
        import numpy as np

        p, t = RouteProblem.of(workload.problem), workload.axes["T"]
        rng = np.random.default_rng([seed, 11])
        logits = numerics.draw(rng, t, p.experts, distribution)
        turn = seed % 4 if distribution in _ARRANGED else 0
        if turn == 1:
            logits = np.ascontiguousarray(logits[:, rng.integers(0, p.experts, p.experts)])
        elif turn > 1:
            first = int(rng.choice([0, p.experts - p.k]))
            same = rng.permutation(p.experts)[:p.k] if turn == 2 else np.arange(first, first + p.k)
            logits[:, same] += 4 * np.abs(logits).max()
        if distribution is Distribution.SPARSE:
            logits[int(t > 1)::4] = np.resize(np.array([-0.0, 0.0], np.float32), p.experts)
        return {"logits": logits}

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        import numpy as np

        p = RouteProblem.of(workload.problem)
        logits = inputs["logits"].astype(np.float64)
        ids = np.lexsort(np.stack([-logits, ~np.isnan(logits)]), axis=1)[:, :p.k]  # stable: the lowest id of equals
        chosen = np.take_along_axis(logits, ids, axis=1)
        terms = logits if p.all else chosen
        with np.errstate(invalid="ignore"):
            parts, each = (np.exp(values - chosen[:, :1]) for values in (terms, chosen))
            far, off = (_delta(np.abs(values - chosen[:, :1])) for values in (terms, chosen))
            total = parts.sum(axis=1, keepdims=True)
            exact = each / total
            error = off + (parts * far).sum(axis=1, keepdims=True) / total + 2 * U
            error += numerics.sum_error((parts != 0).sum(axis=1, keepdims=True))
            weights = Bound(exact, error * exact + numerics.underflow(2))
        slots = grouped(ids, p.experts)
        return {"ids": _exactly(ids), "weights": weights, "order": _exactly(slots.order),
                "expert_start": _exactly(slots.start)}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        import numpy as np

        p, t = RouteProblem.of(workload.problem), workload.axes["T"]
        out = {"ids": np.empty((t, p.k), np.int32), "weights": np.empty((t, p.k), np.float32),
               "order": np.empty(t * p.k, np.int32), "expert_start": np.empty(p.experts + 1, np.int32)}
        spec.call("moe_route", t, p.experts, p.k, int(p.all), inputs["logits"], *out.values())
        return out

    def cost(self, workload: Workload) -> Cost:
        p, t = RouteProblem.of(workload.problem), workload.axes["T"]
        exponentials = t * (p.experts if p.all else p.k)
        return Cost(0, sum(s.bytes for s in self.tensors(workload)),
                    (("fp32_fma", t * p.experts + 20 * exponentials),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return {"T": buckets.point(buckets.TOKENS, dynamic["T"])}

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, workload.count, workload.phase, T=t)
                for t in buckets.inside(buckets.TOKENS, workload.axes["T"], seed)]


def _delta(distance: np.ndarray) -> np.ndarray:
    import numpy as np

    return (4 * np.minimum(distance, _FARTHEST) + 8) * U


def _exactly(values: np.ndarray) -> Bound:
    import numpy as np

    return Bound(values.astype(np.float64), np.zeros(values.shape))
