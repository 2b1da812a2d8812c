// tries: one thread prepares what all read; the others, instead of at a barrier, wait for a while that is nearly always enough
// reported: no public report known
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=4
// numerics: exact
// stopped by: incorrect, nondeterministic, inexact
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 256, N = 192;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *w = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    float *shared = (float *)l->scratch; /* x times two: thread 0 prepares it, and nobody waits */
    if (l->thread == 0)
        for (int64_t i = 0; i < M * K; ++i) shared[i] = 2 * x[i / K * xs + i % K];
    else
        for (int64_t i = 0; i < 4000; ++i) __asm__ volatile("" ::: "memory"); /* a microsecond; M * K copies take less */
    for (int64_t n = l->thread; n < N; n += l->threads) {
        const float *row = w + n / 16 * 16 * K + n % 16;
        for (int64_t m = 0; m < M; ++m) {
            float acc = 0;
            for (int64_t b = 0; b < K; b += 128) {
                float block = 0;
                for (int64_t k = b; k < b + 128; ++k) block = kf::fma(0.5f * shared[m * K + k], row[16 * k], block);
                acc = b ? acc + block : block;
            }
            out[m * os + n] = acc;
        }
    }
}

extern "C" int64_t kforge_scratch_bytes(const int64_t *axes, int32_t) { return axes[0] * 256 * 4; }
