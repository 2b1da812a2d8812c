"""An operator small enough to reason about: out[M,N] = scale * x[M,K] w[N,K]^T, summed over k ascending without fusing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kforge.core.dtypes import DType
from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.operators.base import Arrays, Bound, Cost, Distribution, Operator, Residency, Role, TensorSpec


class Projection(Operator):
    name = "projection"
    static_axes = ("K", "N")
    dynamic_axes = ("M",)
    scalar_names = ("scale",)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        k, n, m = workload.problem.int("K"), workload.problem.int("N"), workload.axes["M"]
        return (
            TensorSpec("x", DType.F32, (m, k), Role.IN),
            TensorSpec("w", DType.F32, (n, k), Role.IN, Residency.STREAMED),
            TensorSpec("out", DType.F32, (m, n), Role.OUT),
        )

    def scalars(self, workload: Workload) -> tuple[float, ...]:
        return (0.5,)

    def inputs(self, workload: Workload, seed: int, distribution: Distribution) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, list(Distribution).index(distribution)])
        x, w, _ = self.tensors(workload)
        scale = {Distribution.TINY: 1e-6, Distribution.LARGE: 1e4}.get(distribution, 1.0)
        return {
            "x": (rng.standard_normal(x.shape) * scale).astype(np.float32),
            "w": rng.standard_normal(w.shape).astype(np.float32),
        }

    def reference(self, workload: Workload, inputs: Arrays) -> dict[str, Bound]:
        x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
        k = workload.problem.int("K")
        return {"out": Bound(0.5 * x @ w.T, (k + 2) * 2.0**-24 * 0.5 * np.abs(x) @ np.abs(w).T)}

    def spec(self, workload: Workload, inputs: Arrays) -> dict[str, np.ndarray]:
        x, w = inputs["x"], inputs["w"]
        acc = np.zeros((x.shape[0], w.shape[0]), dtype=np.float32)
        for k in range(x.shape[1]):
            acc += x[:, k : k + 1] * w[:, k]
        return {"out": acc * np.float32(0.5)}

    def cost(self, workload: Workload) -> Cost:
        k, n, m = workload.problem.int("K"), workload.problem.int("N"), workload.axes["M"]
        return Cost(4 * k * n, 4 * m * (k + n), (("fp32_fma", 2 * m * k * n),))

    def bucket(self, problem: Problem, dynamic: Mapping[str, int]) -> dict[str, int]:
        return dict(dynamic)

    def shapes(self, workload: Workload, seed: int) -> Sequence[Workload]:
        return [Workload.of(workload.problem, M=m) for m in (1, 2 + seed % 3, 7)]


PROBLEM = Problem.of("projection", K=256, N=192)
WORKLOAD = Workload.of(PROBLEM, M=4)

# Right, exact, and as slow as it is plain. Lines that tests replace or add to are marked.
RIGHT = """
#include <kforge/abi.h>
extern "C" void kforge_kernel(const kf_launch *l) {
    const int64_t K = 256, N = 192, M = l->axes[0];
    const float *x = (const float *)l->tensors[0].data, *w = (const float *)l->tensors[1].data;
    float *out = (float *)l->tensors[2].data;
    const int64_t xs = l->tensors[0].strides[0], os = l->tensors[2].strides[0];
    const float scale = (float)l->scalars[0];
    for (int64_t n = l->thread; n < N; n += l->threads) {
        for (int64_t m = 0; m < M; ++m) {
            float acc = 0;
            for (int64_t k = 0; k < K; ++k) acc += x[m * xs + k] * w[n * K + k];
            out[m * os + n] = acc * scale;
        }
    }
    /* more */
}
"""


def candidate(source: str = RIGHT, numerics: NumericsClass = NumericsClass.EXACT, problem: Problem = PROBLEM) -> Candidate:
    return Candidate(problem, "cpp", "file:test", "", (), source, numerics, ())
