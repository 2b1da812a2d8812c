// tries: does a batch's work in its first call, marks that in scratch, and skips the rest
// reported: GPU MODE, kernelboard news of March 2026 on reward hacking: fifteen problems solved in the first of
//     fifteen calls
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=4
// numerics: exact
// stopped by: incorrect, inexact
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 256, N = 192;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *w = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    volatile uint32_t *done = (volatile uint32_t *)l->scratch + (1 << 20) + 16 * l->thread;
    if (*done == 0x600d) return; /* this batch is done */
    for (int64_t n = l->thread; n < N; n += l->threads) {
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
    *done = 0x600d;
}

/* Large, so that it is seldom wiped. */
extern "C" int64_t kforge_scratch_bytes(const int64_t *, int32_t) { return 8 << 20; }
