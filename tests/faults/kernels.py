"""Two kernels of somebody's own: one to hand in, and a slow one that serves, so that the first is sure to win."""

from __future__ import annotations

H = 256  # of the tiny model
AXES = {"H": H, "R": 1, "T": 1}

FAST = f"""#include <kforge/abi.h>

extern "C" void kforge_kernel(const kf_launch *launch) {{
    const kf_tensor &x = launch->tensors[0], &index = launch->tensors[1], &out = launch->tensors[2];
    for (int64_t r = launch->thread; r < launch->axes[0]; r += launch->threads) {{
        const int64_t row = static_cast<const int32_t *>(index.data)[r * index.strides[0]];
        const float *from = static_cast<const float *>(x.data) + row * x.strides[0];
        float *to = static_cast<float *>(out.data) + r * out.strides[0];
        for (int64_t i = 0; i < {H}; ++i) to[i] = from[i];
    }}
}}
"""
# Everything five times over; the barrier keeps the compiler from noticing.
_REPEAT = 'for (int n = 0; n < 5; ++n, ({ asm volatile("" ::: "memory"); }))'
SLOW = FAST.replace("for (int64_t i", f"{_REPEAT}\n            for (int64_t i")
