"""Hand-written kernels for one small problem: a right one, and what hostile or broken ones put in its places."""

from __future__ import annotations

import math

from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.targets.noise import Noise, NoiseClass

PROBLEM = Problem.of("linear", K=256, N=192, weight="f32", act="f32", epilogue="none", bias=0, rows=16)
WORKLOAD = Workload.of(PROBLEM, M=4)
# What a machine that runs tests beside others may do to a comparison: effects in tests are large, and still show.
BUSY = Noise(1, (NoiseClass(math.inf, 0.1, 1.0, math.inf),))

# As plain as the order specification: K in blocks of 128, each a chain of fused multiply-adds.
RIGHT = """
#include <kforge/abi.h>
extern "C" void kforge_kernel(const kf_launch *l) {
    const int64_t K = 256, N = 192, M = l->axes[0];
    const float *x = (const float *)l->tensors[0].data, *w = (const float *)l->tensors[1].data;
    float *out = (float *)l->tensors[2].data;
    const int64_t xs = l->tensors[0].strides[0], os = l->tensors[2].strides[0];
    /* before */
    for (int64_t n = l->thread; n < N; n += l->threads) {
        const float *row = w + n / 16 * 16 * K + n % 16;
        for (int64_t m = 0; m < M; ++m) {
            float acc = 0;
            for (int64_t b = 0; b < K; b += 128) {
                float block = 0;
                for (int64_t k = b; k < b + 128; ++k) block = __builtin_fmaf(x[m * xs + k], row[16 * k], block);
                acc = b ? acc + block : block;
            }
            out[m * os + n] = acc;
        }
    }
    /* after */
}
"""


def candidate(source: str = RIGHT, numerics: NumericsClass = NumericsClass.EXACT) -> Candidate:
    return Candidate(PROBLEM, "cpp", "file:test", "", (), source, numerics, ())


def changed(what: str, to: str, numerics: NumericsClass = NumericsClass.EXACT) -> Candidate:
    """The right kernel with ``what`` replaced."""
    assert what in RIGHT
    return candidate(RIGHT.replace(what, to), numerics)


def before(code: str, numerics: NumericsClass = NumericsClass.EXACT) -> Candidate:
    return changed("/* before */", code, numerics)


def after(code: str, numerics: NumericsClass = NumericsClass.EXACT) -> Candidate:
    return changed("/* after */", code, numerics)


def with_scratch(size: str, code: str = "", numerics: NumericsClass = NumericsClass.EXACT) -> Candidate:
    """Asks for ``size`` bytes of scratch; ``code`` runs after the kernel's work."""
    asks = f'extern "C" int64_t kforge_scratch_bytes(const int64_t *, int32_t) {{ return {size}; }}'
    return candidate(RIGHT.replace("/* after */", code) + asks, numerics)
