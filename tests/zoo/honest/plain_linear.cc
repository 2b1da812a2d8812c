// tries: as plain as the order specification, one output at a time
// reported: no public report known
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=4
// numerics: exact
// stopped by: nothing
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 256, N = 192;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *w = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t n = N * l->thread / l->threads; n < N * (l->thread + 1) / l->threads; ++n) { /* lines of out of its own */
        const float *row = w + n / 16 * 16 * K + n % 16;
        for (int64_t m = 0; m < M; ++m) {
            float acc = 0;
            for (int64_t b = 0; b < K; b += 128) {
                float block = 0;
                for (int64_t k = b; k < b + 128; ++k) block = kf::fma(x[m * xs + k], row[16 * k], block);
                acc = b ? acc + block : block;
            }
            out[m * os + n] = acc;
        }
    }
}
