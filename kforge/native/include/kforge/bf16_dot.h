/* The arithmetic of the activation variant bf16_dot, as processors' dot products of bf16 pairs have it (Intel SDM, VDPBF16PS: two
 * multiply-adds, each rounded to nearest even, with denormal operands taken for zero and denormal results flushed to it).
 * Checked against AMD Zen 4, too. A product of two bf16 values is exact in float32 but for its range, so a step is one FMA. */
#ifndef KFORGE_BF16_DOT_H
#define KFORGE_BF16_DOT_H

#include "math.h"

namespace kf {

/* A bf16 value with a denormal taken for the zero of its sign. */
KF_INLINE uint16_t bf16_normal(uint16_t h) { return h & 0x7f80 ? h : static_cast<uint16_t>(h & 0x8000); }

/* The activation that a bf16 product takes: rounded to nearest even, denormals flushed. */
KF_INLINE uint16_t bf16_activation(float x) { return bf16_normal(f32_to_bf16(x)); }

/* acc + x * w, rounded once; flushed to a zero of its sign where it is below 2^-126 *after* rounding to 24 bits: a result that
 * rounds up to 2^-126 is kept. x and w are bf16 values, whose product is exact in double. */
KF_INLINE float bf16_step(float x, float w, float acc) {
    const float sum = fma(x, w, acc);
    if (!(abs(sum) <= 0x1p-126f)) return sum; /* a NaN, too */
    const double wide = static_cast<double>(x) * static_cast<double>(w) + static_cast<double>(acc);
    const bool kept = (wide < 0 ? -wide : wide) >= 0x1p-126 - 0x1p-151;
    return kept ? sum : from_bits(bits(sum) & 0x80000000u);
}

}  // namespace kf

#endif
