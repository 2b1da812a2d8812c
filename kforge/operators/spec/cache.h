// Elements of a KV cache.
#ifndef KFORGE_SPEC_CACHE_H
#define KFORGE_SPEC_CACHE_H

#include "kforge/math.h"

namespace kf {
namespace spec {

enum class CacheType { f32, bf16, f16 };

inline float load(CacheType type, const void *cache, int64_t at) {
    if (type == CacheType::f32) return static_cast<const float *>(cache)[at];
    const uint16_t half = static_cast<const uint16_t *>(cache)[at];
    return type == CacheType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
}

inline void store(CacheType type, void *cache, int64_t at, float value) {
    if (type == CacheType::f32)
        static_cast<float *>(cache)[at] = value;
    else
        static_cast<uint16_t *>(cache)[at] = type == CacheType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
}

}  // namespace spec
}  // namespace kf

#endif
