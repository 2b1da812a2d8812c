// Order specifications of `embedding`, `rms_norm`, `silu_mul` and `rope_kv_write`.
#include <vector>

#include "cache.h"
#include "weight.h"

extern "C" void kf_spec_embedding(int64_t format, int64_t rows, int64_t T, int64_t V, int64_t H, const int32_t *ids,
                                  const uint8_t *table, float *out) {
    using namespace kf::spec;
    const Take take = take_of(static_cast<kf::panel::Format>(format), rows);
    Tile tile;
    for (int64_t t = 0; t < T; ++t) {
        take(table, V, H, false, ids[t], ids[t] + 1, false, &tile);
        for (int64_t h = 0; h < H; ++h) out[t * H + h] = tile.value[h * kLanes];
    }
}

// residual may be null.
extern "C" void kf_spec_rms_norm(int64_t T, int64_t H, double eps, const float *x, const float *weight, float *residual,
                                 float *out) {
    for (int64_t t = 0; t < T; ++t) {
        const float *row = x + t * H;
        if (residual) {
            for (int64_t h = 0; h < H; ++h) residual[t * H + h] += row[h];
            row = residual + t * H;
        }
        float lanes[16] = {};
        for (int64_t h = 0; h < H; ++h) lanes[h % 16] = kf::fma(row[h], row[h], lanes[h % 16]);
        const float mean = kf::tree_sum(lanes) / static_cast<float>(H);
        const float r = 1.0f / kf::sqrt(mean + static_cast<float>(eps));
        for (int64_t h = 0; h < H; ++h) out[t * H + h] = (row[h] * r) * weight[h];
    }
}

extern "C" void kf_spec_silu_mul(int64_t T, int64_t I, const float *gate_up, float *out) {
    for (int64_t t = 0; t < T; ++t)
        for (int64_t i = 0; i < I; ++i)
            out[t * I + i] = kf::silu(gate_up[t * 2 * I + i]) * gate_up[t * 2 * I + I + i];
}

// Scales are null where the cache has floats.
extern "C" void kf_spec_rope_kv_write(int64_t T, int64_t Hq, int64_t Hkv, int64_t D, int64_t P, int64_t kv, int64_t neox,
                                      const float *qkv, const int32_t *position, const int32_t *slot, const float *cos,
                                      const float *sin, float *q_out, void *k_cache, void *v_cache, float *k_scale,
                                      float *v_scale) {
    using namespace kf::spec;
    const auto type = static_cast<CacheType>(kv);
    const Written k{type, k_cache, k_scale, Hkv, D, P, true}, v{type, v_cache, v_scale, Hkv, D, P, false};
    std::vector<float> turned(D);
    for (int64_t t = 0; t < T; ++t) {
        const float *in = qkv + t * (Hq + 2 * Hkv) * D, *c = cos + position[t] * (D / 2), *s = sin + position[t] * (D / 2);
        for (int64_t h = 0; h < Hq; ++h) rotate(in + h * D, c, s, D, neox, q_out + (t * Hq + h) * D);
        for (int64_t h = 0; h < Hkv && slot[t] >= 0; ++h) {
            rotate(in + (Hq + h) * D, c, s, D, neox, turned.data());
            k.put(slot[t], h, turned.data());
            v.put(slot[t], h, in + (Hq + Hkv + h) * D);
        }
    }
}
