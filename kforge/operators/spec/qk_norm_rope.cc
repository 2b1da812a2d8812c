// Order specification of `qk_norm_rope_kv_write`.
#include <vector>

#include "cache.h"

// A head divided by the root of its mean square, times its norm's weight: as rms_norm.
static void normalise(const float *x, const float *weight, int64_t D, float eps, float *out) {
    float lanes[16] = {};
    for (int64_t d = 0; d < D; ++d) lanes[d % 16] = kf::fma(x[d], x[d], lanes[d % 16]);
    const float r = 1.0f / kf::sqrt(kf::tree_sum(lanes) / static_cast<float>(D) + eps);
    for (int64_t d = 0; d < D; ++d) out[d] = (x[d] * r) * weight[d];
}

extern "C" void kf_spec_qk_norm_rope_kv_write(int64_t T, int64_t Hq, int64_t Hkv, int64_t D, int64_t P, int64_t kv,
                                              int64_t neox, double eps, const float *qkv, const float *q_norm,
                                              const float *k_norm, const int32_t *position, const int32_t *slot,
                                              const float *cos, const float *sin, float *q_out, void *k_cache,
                                              void *v_cache, float *k_scale, float *v_scale) {
    using namespace kf::spec;
    const auto type = static_cast<CacheType>(kv);
    const Written k{type, k_cache, k_scale, Hkv, D, P, true}, v{type, v_cache, v_scale, Hkv, D, P, false};
    std::vector<float> head(D), turned(D);
    for (int64_t t = 0; t < T; ++t) {
        const float *in = qkv + t * (Hq + 2 * Hkv) * D, *c = cos + position[t] * (D / 2), *s = sin + position[t] * (D / 2);
        for (int64_t h = 0; h < Hq + Hkv; ++h) {
            normalise(in + h * D, h < Hq ? q_norm : k_norm, D, static_cast<float>(eps), head.data());
            rotate(head.data(), c, s, D, neox, h < Hq ? q_out + (t * Hq + h) * D : turned.data());
            if (h >= Hq && slot[t] >= 0) k.put(slot[t], h - Hq, turned.data());
        }
        for (int64_t h = 0; h < Hkv && slot[t] >= 0; ++h) v.put(slot[t], h, in + (Hq + Hkv + h) * D);
    }
}
