// Order specification of `linear`, both activation variants and all epilogues.
#include <algorithm>

#include "weight.h"

namespace kf {
namespace spec {
namespace {

struct Activations {
    std::vector<int8_t> q;   // [M][K]
    std::vector<float> d;    // [M][K / 32]
    std::vector<int32_t> sum;
};

Activations quantize(const float *x, int64_t M, int64_t K) {
    Activations a{std::vector<int8_t>(M * K), std::vector<float>(M * K / 32), std::vector<int32_t>(M * K / 32)};
    for (int64_t g = 0; g < M * K / 32; ++g) {
        uint32_t top = 0;
        for (int i = 0; i < 32; ++i) top = std::max(top, kf::bits(kf::abs(x[g * 32 + i])));
        const float amax = kf::from_bits(top);
        const float inverse = a8_inverse(amax);
        a.d[g] = kf::a8_scale(amax);
        for (int i = 0; i < 32; ++i) {
            const int32_t q = a8_quantize(x[g * 32 + i], inverse);
            a.q[g * 32 + i] = static_cast<int8_t>(q);
            a.sum[g] += q;
        }
    }
    return a;
}

// One token against 16 rows. The lanes are independent: running over them innermost keeps each one's order.
void dot_a8(const Tile &w, const Activations &a, int64_t token, int64_t K, int step, bool minimum, float *acc) {
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

void dot_f32(const Tile &w, const float *x, int64_t K, float *acc) {
    for (int64_t k0 = 0; k0 < K; k0 += 128) {
        float block[kLanes] = {};
        for (int64_t k = k0; k < std::min(K, k0 + 128); ++k)
            for (int l = 0; l < kLanes; ++l) block[l] = kf::fma(x[k], w.value[k * kLanes + l], block[l]);
        for (int l = 0; l < kLanes; ++l) acc[l] = k0 == 0 ? block[l] : acc[l] + block[l];
    }
}

}  // namespace
}  // namespace spec
}  // namespace kf

// bias and residual may be null; with silu_gate, out is [M, N / 2] and the residual is not used.
extern "C" void kf_spec_linear(int64_t format, int64_t rows, int64_t a8, int64_t silu_gate, int64_t M, int64_t N, int64_t K,
                               const float *x, const uint8_t *weight, const float *bias, const float *residual, float *out) {
    using namespace kf::spec;
    const auto f = static_cast<kf::panel::Format>(format);
    const Take take = take_of(f, rows);
    const Activations a = a8 ? quantize(x, M, K) : Activations{};
    const int step = f == kf::panel::Format::q6_k ? 16 : 32;
    const int64_t width = silu_gate ? N / 2 : N;
    const auto compute = [&](const Tile &tile, int64_t token, int64_t first, int64_t count, float *acc) {
        if (a8)
            dot_a8(tile, a, token, K, step, kf::panel::has_min(f), acc);
        else
            dot_f32(tile, x + token * K, K, acc);
        for (int64_t l = 0; bias && l < count; ++l) acc[l] += bias[first + l];
    };
    Tile tile, up;
    float acc[kLanes], other[kLanes];
    for (int64_t n = 0; n < width; n += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, width - n);
        take(weight, N, K, silu_gate, n, n + count, a8, &tile);
        if (silu_gate) take(weight, N, K, true, width + n, width + n + count, a8, &up);
        for (int64_t token = 0; token < M; ++token) {
            compute(tile, token, n, count, acc);
            if (silu_gate) compute(up, token, width + n, count, other);
            for (int64_t l = 0; l < count; ++l) {
                const int64_t at = token * width + n + l;
                out[at] = silu_gate ? kf::silu(acc[l]) * other[l] : residual ? residual[at] + acc[l] : acc[l];
            }
        }
    }
}
