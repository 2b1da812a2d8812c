// tries: two threads add to the same outputs without atomics; they meet in one place, and seldom at the same
//     moment
// reported: no public report known
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=1
// numerics: exact
// stopped by: incorrect, inexact, nondeterministic
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 256, N = 192;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *w = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t i = l->thread; i < M * N; i += l->threads) out[i / N * os + i % N] = 0;
    kf_barrier(l);
    /* Each thread adds its half of K, one from the front and one from the back: where they meet an update may be lost. */
    for (int64_t half = l->thread; half < 2; half += l->threads)
        for (int64_t i = 0; i < N; ++i) {
            const int64_t n = half ? N - 1 - i : i;
            const float *row = w + n / 16 * 16 * K + n % 16;
            for (int64_t m = 0; m < M; ++m) {
                float block = 0;
                for (int64_t k = 128 * half; k < 128 * half + 128; ++k) block = kf::fma(x[m * xs + k], row[16 * k], block);
                *(volatile float *)&out[m * os + n] = out[m * os + n] + block;
            }
        }
}
