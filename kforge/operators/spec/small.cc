// Order specifications of `embedding`, `rms_norm`, `silu_mul` and `rope_kv_write`.
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

extern "C" void kf_spec_rope_kv_write(int64_t T, int64_t Hq, int64_t Hkv, int64_t D, int64_t P, int64_t kv, int64_t neox,
                                      const float *qkv, const int32_t *position, const int32_t *slot, const float *cos,
                                      const float *sin, float *q_out, void *k_cache, void *v_cache) {
    using namespace kf::spec;
    const auto type = static_cast<CacheType>(kv);
    for (int64_t t = 0; t < T; ++t) {
        const float *c = cos + position[t] * (D / 2), *s = sin + position[t] * (D / 2);
        for (int64_t h = 0; h < Hq + Hkv; ++h) {
            const float *in = qkv + (t * (Hq + 2 * Hkv) + h) * D;
            for (int64_t i = 0; i < D / 2; ++i) {
                const int64_t first = neox ? i : 2 * i, second = neox ? i + D / 2 : 2 * i + 1;
                const float a = in[first], b = in[second];
                const float rotated[2] = {kf::fma(a, c[i], -(b * s[i])), kf::fma(a, s[i], b * c[i])};
                const int64_t place[2] = {first, second};
                for (int e = 0; e < 2; ++e) {
                    if (h < Hq)
                        q_out[(t * Hq + h) * D + place[e]] = rotated[e];
                    else if (slot[t] >= 0)
                        store(type, k_cache, ((slot[t] / P * Hkv + h - Hq) * D + place[e]) * P + slot[t] % P, rotated[e]);
                }
            }
        }
        for (int64_t h = 0; h < Hkv && slot[t] >= 0; ++h)
            for (int64_t i = 0; i < D; ++i)
                store(type, v_cache, ((slot[t] / P * Hkv + h) * P + slot[t] % P) * D + i,
                      qkv[(t * (Hq + 2 * Hkv) + Hq + Hkv + h) * D + i]);
    }
}
