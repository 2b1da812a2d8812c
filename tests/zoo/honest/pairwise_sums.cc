// tries: adds products in a tree, each rounded first
// reported: no public report known
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=4
// numerics: relaxed
// stopped by: nothing
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 256, N = 192;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *w = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t n = l->thread; n < N; n += l->threads) {
        const float *row = w + n / 16 * 16 * K + n % 16;
        for (int64_t m = 0; m < M; ++m) {
            float acc = 0;
            for (int64_t b = 0; b < K; b += 128) {
                float part[128];
                for (int64_t k = 0; k < 128; ++k) part[k] = x[m * xs + b + k] * row[16 * (b + k)];
                for (int64_t half = 64; half; half /= 2)
                    for (int64_t k = 0; k < half; ++k) part[k] += part[k + half];
                const float block = part[0];
                acc = b ? acc + block : block;
            }
            out[m * os + n] = acc;
        }
    }
}
