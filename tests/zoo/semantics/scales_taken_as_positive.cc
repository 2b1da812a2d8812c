// tries: drops the sign of the weight's scales; files have negative ones
// reported: no public report known
// workload: linear(K=128,N=48,weight=q4_0,act=a8,epilogue=none,bias=0,rows=16)@M=3
// numerics: exact
// stopped by: incorrect, inexact
#include <kforge/abi.h>
#include <kforge/panel.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 128, N = 48;
    using kf::panel::Format;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data;
    const uint8_t *w = (const uint8_t *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = l->thread; n < N; n += l->threads) {
            float acc = 0;
            for (int64_t g = 0; g < K; g += 32) {
                uint32_t top = 0; /* among the bits of absolute values NaN is the largest */
                for (int64_t k = g; k < g + 32; ++k) top = kf::bits(kf::abs(x[m * xs + k])) > top ? kf::bits(kf::abs(x[m * xs + k])) : top;
                const float amax = kf::from_bits(top), inverse = kf::a8_inverse(amax);
                int32_t dot = 0;
                for (int64_t k = g; k < g + 32; ++k)
                    dot += (kf::panel::code<Format::q4_0, 16>(w, K, n, k) - 8) * kf::a8_quantize(x[m * xs + k], inverse);
                const float d_w = kf::abs(kf::panel::scale<Format::q4_0, 16>(w, K, n, g).d);
                acc = kf::fma((float)dot, d_w * kf::a8_scale(amax), acc);
            }
            out[m * os + n] = acc;
        }
}
