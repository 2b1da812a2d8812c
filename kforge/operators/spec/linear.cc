// Order specifications of `linear` and `moe_linear`.
#include "weight.h"

#include "linear.h"

// bias and residual may be null.
extern "C" void kf_spec_linear(int64_t format, int64_t rows, int64_t act, int64_t gate, int64_t M, int64_t N, int64_t K,
                               const float *x, const uint8_t *weight, const float *bias, const float *residual, float *out) {
    using namespace kf::spec;
    const Linear p{static_cast<kf::panel::Format>(format), rows, static_cast<Act>(act), static_cast<Gate>(gate), N, K};
    linear(p, M, x, weight, bias, residual, out);
}

// The slots of an expert (order[expert_start[e]] and so on) are a `linear` of its matrix: row slot / share of x, row slot of out.
extern "C" void kf_spec_moe_linear(int64_t format, int64_t rows, int64_t act, int64_t gate, int64_t E, int64_t share, int64_t N,
                                   int64_t K, const float *x, const int32_t *order, const int32_t *expert_start,
                                   const uint8_t *weight, int64_t expert_bytes, const float *bias, float *out) {
    using namespace kf::spec;
    const Linear p{static_cast<kf::panel::Format>(format), rows, static_cast<Act>(act), static_cast<Gate>(gate), N, K};
    const int64_t width = p.gate == Gate::none ? N : N / 2;
    for (int64_t e = 0; e < E; ++e) {
        const int64_t M = expert_start[e + 1] - expert_start[e];
        const int32_t *slot = order + expert_start[e];
        std::vector<float> from(M * K), to(M * width);
        for (int64_t m = 0; m < M; ++m) std::copy_n(x + slot[m] / share * K, K, &from[m * K]);
        if (M > 0) linear(p, M, from.data(), weight + e * expert_bytes, bias ? bias + e * N : nullptr, nullptr, to.data());
        for (int64_t m = 0; m < M; ++m) std::copy_n(&to[m * width], width, out + slot[m] * width);
    }
}
