"""``qk_norm_rope_kv_write``: ``rope_kv_write`` of heads that are normalised first, as Qwen3 has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge.core.dtypes import DType
from kforge.core.workload import Workload
from kforge.operators import numerics
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Role, TensorSpec
from kforge.operators.kv_cache import KvProblem
from kforge.operators.numerics import U
from kforge.operators.rope import RopeKvWrite, heads_of

if TYPE_CHECKING:
    import numpy as np

_NORMS = ("q_norm", "k_norm")


class QkNormRopeKvWrite(RopeKvWrite):
    """Each head x of q and k becomes x / sqrt(mean(x^2) + eps) * weight, one weight for all heads of q and one for
    those of k. Then pairs (a, b) of it become (a c - b s, a s + b c); k, and v as it is, go to ``slot`` of the cache in
    its type.

    Bound. The norm is off by what ``rms_norm`` allows a row of D,
    ``e(a) = (sum_error(n) / 2 + 14u) |a| + underflow(1 + r + |weight|)`` with n non-zero elements, and the rotation
    carries it on: ``4u (|a c| + |b s|) + underflow(2) + e(a) |c| + e(b) |s|``. The cache adds its rounding as in
    ``rope_kv_write``. A NaN makes its head's outputs NaN; an infinity is NaN in the two elements of its pair and zero
    in the others of the head. In v both stay where they are.
    """

    name = "qk_norm_rope_kv_write"
    scalar_names = ("eps",)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        qkv, *others = super().tensors(workload)
        d = workload.problem.int("D")
        return (qkv, *(TensorSpec(name, DType.F32, (d,), Role.IN) for name in _NORMS), *others)

    def scalars(self, workload: Workload) -> tuple[float, ...]:
        return (1e-6,)

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        import numpy as np

        made, d = super().inputs(workload, seed, distribution), workload.problem.int("D")
        rng = np.random.default_rng([seed, 11])
        norms = {name: (rng.uniform(0.5, 1.5, d) * rng.choice([-1, 1], d)).astype(np.float32) for name in _NORMS}
        if distribution is not Distribution.NORMAL:  # which is what timed calls have
            made["eps"] = np.array(10 ** rng.uniform(-6.5, -4))
        return {"qkv": made.pop("qkv"), **norms, **made}

    def _q_and_k(self, workload: Workload, inputs: Arrays) -> Bound:
        import numpy as np

        p = KvProblem.of(workload.problem)
        x = heads_of(p, inputs)[:, :p.heads + p.kv_heads]
        weight = np.repeat([inputs[name].astype(np.float64) for name in _NORMS], [p.heads, p.kv_heads], axis=0)
        r = 1 / np.sqrt((x * x).mean(axis=2, keepdims=True) + self.given_scalars(workload, inputs)[0])
        error = numerics.sum_error((x != 0).sum(axis=2, keepdims=True)) / 2 + 14 * U
        with np.errstate(invalid="ignore"):
            exact = x * r * weight
            return Bound(exact, error * np.abs(exact) + numerics.underflow(1 + r + np.abs(weight)))

    def cost(self, workload: Workload) -> Cost:
        p, t, rope = KvProblem.of(workload.problem), workload.axes["T"], super().cost(workload)
        norms = 4 * t * (p.heads + p.kv_heads) * p.d
        return Cost(rope.streamed_bytes, rope.hot_bytes + 2 * 4 * p.d,
                    tuple((name, count + norms) for name, count in rope.operations))
