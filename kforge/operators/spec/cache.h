// Elements of a KV cache, and what is written to it.
#ifndef KFORGE_SPEC_CACHE_H
#define KFORGE_SPEC_CACHE_H

#include <algorithm>

#include "kforge/math.h"

namespace kf {
namespace spec {

enum class CacheType { f32, bf16, f16, i8 };

inline float load(CacheType type, const void *cache, int64_t at) {
    if (type == CacheType::f32) return static_cast<const float *>(cache)[at];
    if (type == CacheType::i8) return static_cast<float>(static_cast<const int8_t *>(cache)[at]);
    const uint16_t half = static_cast<const uint16_t *>(cache)[at];
    return type == CacheType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
}

// k or v of a cache; `scale` [pages, Hkv, P] is null where elements are floats.
struct Written {
    CacheType type;
    void *cache;
    float *scale;
    int64_t Hkv, D, P;
    bool transposed; // [D, P] in a page instead of [P, D]

    void put(int64_t slot, int64_t head, const float *x) const {
        const int64_t page = slot / P * Hkv + head, offset = slot % P;
        float inverse = 0;
        if (type == CacheType::i8) {
            uint32_t amax = 0; // over the bits, so that a NaN is the largest
            for (int64_t d = 0; d < D; ++d) amax = std::max(amax, bits(x[d]) & 0x7fffffffu);
            scale[page * P + offset] = a8_scale(from_bits(amax));
            inverse = a8_inverse(from_bits(amax));
        }
        for (int64_t d = 0; d < D; ++d) {
            const int64_t at = transposed ? (page * D + d) * P + offset : (page * P + offset) * D + d;
            if (type == CacheType::f32)
                static_cast<float *>(cache)[at] = x[d];
            else if (type == CacheType::i8)
                static_cast<int8_t *>(cache)[at] = static_cast<int8_t>(a8_quantize(x[d], inverse));
            else
                static_cast<uint16_t *>(cache)[at] = type == CacheType::bf16 ? f32_to_bf16(x[d]) : f32_to_f16(x[d]);
        }
    }
};

// Pairs of a head turned by the angles of a position.
inline void rotate(const float *x, const float *c, const float *s, int64_t D, bool neox, float *out) {
    for (int64_t i = 0; i < D / 2; ++i) {
        const int64_t first = neox ? i : 2 * i, second = neox ? i + D / 2 : 2 * i + 1;
        const float a = x[first], b = x[second];
        out[first] = fma(a, c[i], -(b * s[i]));
        out[second] = fma(a, s[i], b * c[i]);
    }
}

}  // namespace spec
}  // namespace kf

#endif
