// What the order specifications of `linear` and `moe_linear` share: dot products, bias, and gates.
#ifndef KFORGE_SPEC_LINEAR_H
#define KFORGE_SPEC_LINEAR_H

#include <algorithm>
#include <vector>

#include "kforge/bf16_dot.h"
#include "weight.h"

namespace kf {
namespace spec {

// By the codes that callers pass. a8: a scale per 32 k; a8_token: one for all k of a token; bf16_dot: pairs, the odd k first.
enum class Act { f32, a8, a8_token, bf16_dot };

struct Activations {
    std::vector<int8_t> q;   // [M][K]
    std::vector<float> d;    // [M][K / group]
    std::vector<int32_t> sum;
};

inline Activations quantize(const float *x, int64_t M, int64_t K, int64_t group) {
    Activations a{std::vector<int8_t>(M * K), std::vector<float>(M * K / group), std::vector<int32_t>(M * K / group)};
    for (int64_t g = 0; g < M * K / group; ++g) {
        uint32_t top = 0;
        for (int64_t i = 0; i < group; ++i) top = std::max(top, kf::bits(kf::abs(x[g * group + i])));
        const float amax = kf::from_bits(top);
        const float inverse = a8_inverse(amax);
        a.d[g] = kf::a8_scale(amax);
        for (int64_t i = 0; i < group; ++i) {
            const int32_t q = a8_quantize(x[g * group + i], inverse);
            a.q[g * group + i] = static_cast<int8_t>(q);
            a.sum[g] += q;
        }
    }
    return a;
}

// One token against 16 rows. The lanes are independent: running over them innermost keeps each one's order.
inline void dot_a8(const Tile &w, const Activations &a, int64_t token, int64_t K, int step, bool minimum, float *acc) {
    for (int l = 0; l < kLanes; ++l) acc[l] = 0.0f;
    for (int64_t k0 = 0; k0 < K; k0 += step) {
        int32_t idot[kLanes] = {};
        for (int64_t k = k0; k < k0 + step; ++k)
            for (int l = 0; l < kLanes; ++l) idot[l] += w.code[k * kLanes + l] * a.q[token * K + k];
        const int64_t group = (token * K + k0) / 32;
        const float *d = &w.d[k0 / 16 * kLanes], *m = &w.m[k0 / 16 * kLanes];
        for (int l = 0; l < kLanes; ++l) acc[l] = kf::fma(static_cast<float>(idot[l]), d[l] * a.d[group], acc[l]);
        if (minimum)
            for (int l = 0; l < kLanes; ++l) acc[l] = kf::fma(m[l], a.d[group] * static_cast<float>(a.sum[group]), acc[l]);
    }
}

// One integer sum over all of K, then the product with both scales: three roundings, and no order.
inline void dot_a8_token(const Tile &w, const Activations &a, int64_t token, int64_t K, float *acc) {
    int32_t idot[kLanes] = {};
    for (int64_t k = 0; k < K; ++k)
        for (int l = 0; l < kLanes; ++l) idot[l] += w.code[k * kLanes + l] * a.q[token * K + k];
    for (int l = 0; l < kLanes; ++l) acc[l] = static_cast<float>(idot[l]) * (w.d[l] * a.d[token]);
}

inline void dot_f32(const Tile &w, const float *x, int64_t K, float *acc) {
    for (int64_t k0 = 0; k0 < K; k0 += 128) {
        float block[kLanes] = {};
        for (int64_t k = k0; k < std::min(K, k0 + 128); ++k)
            for (int l = 0; l < kLanes; ++l) block[l] = kf::fma(x[k], w.value[k * kLanes + l], block[l]);
        for (int l = 0; l < kLanes; ++l) acc[l] = k0 == 0 ? block[l] : acc[l] + block[l];
    }
}

// One chain over all of K: of each pair the odd k first. Denormal weights count as zeros.
inline void dot_bf16(const Tile &w, const float *x, int64_t K, float *acc) {
    for (int l = 0; l < kLanes; ++l) acc[l] = 0.0f;
    for (int64_t pair = 0; pair < K; pair += 2)
        for (int64_t k = pair + 1; k >= pair; --k) {
            if (k >= K) continue;
            const float x_k = kf::bf16_to_f32(kf::bf16_activation(x[k]));
            for (int l = 0; l < kLanes; ++l) {
                const float w_k = kf::bf16_to_f32(kf::bf16_normal(kf::f32_to_bf16(w.value[k * kLanes + l])));
                acc[l] = kf::bf16_step(x_k, w_k, acc[l]);
            }
        }
}

enum class Gate { none, silu, swiglu_oai };

// Static attributes of a `linear`.
struct Linear {
    panel::Format format;
    int64_t rows;
    Act act;
    Gate gate;
    int64_t N, K;
};

inline float gated(Gate gate, float g, float up) { return gate == Gate::silu ? silu(g) * up : swiglu_oai(g, up); }

// x[M, K] against one matrix. bias and residual may be null; with a gate, out is [M, N / 2] and the residual is not used.
inline void linear(const Linear &p, int64_t M, const float *x, const uint8_t *weight, const float *bias, const float *residual,
                   float *out) {
    const Take take = take_of(p.format, p.rows);
    const bool integers = p.act == Act::a8 || p.act == Act::a8_token;
    const Activations a = integers ? quantize(x, M, p.K, p.act == Act::a8 ? 32 : p.K) : Activations{};
    const int step = p.format == panel::Format::q6_k ? 16 : 32;
    const bool gate = p.gate != Gate::none;
    const int64_t width = gate ? p.N / 2 : p.N;
    const auto compute = [&](const Tile &tile, int64_t token, int64_t first, int64_t count, float *acc) {
        if (p.act == Act::a8_token)
            dot_a8_token(tile, a, token, p.K, acc);
        else if (p.act == Act::a8)
            dot_a8(tile, a, token, p.K, step, panel::has_min(p.format), acc);
        else if (p.act == Act::bf16_dot)
            dot_bf16(tile, x + token * p.K, p.K, acc);
        else
            dot_f32(tile, x + token * p.K, p.K, acc);
        for (int64_t l = 0; bias && l < count; ++l) acc[l] += bias[first + l];
    };
    Tile tile, up;
    float acc[kLanes], other[kLanes];
    for (int64_t n = 0; n < width; n += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, width - n);
        take(weight, p.N, p.K, gate, n, n + count, integers, &tile);
        if (gate) take(weight, p.N, p.K, true, width + n, width + n + count, integers, &up);
        for (int64_t token = 0; token < M; ++token) {
            compute(tile, token, n, count, acc);
            if (gate) compute(up, token, width + n, count, other);
            for (int64_t l = 0; l < count; ++l) {
                const int64_t at = token * width + n + l;
                out[at] = gate ? gated(p.gate, acc[l], other[l]) : residual ? residual[at] + acc[l] : acc[l];
            }
        }
    }
}

}  // namespace spec
}  // namespace kf

#endif
