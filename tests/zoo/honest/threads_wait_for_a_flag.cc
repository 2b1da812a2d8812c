// tries: one thread prepares what the others wait for at a flag of their own
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
    float *shared = (float *)l->scratch + 16;
    uint32_t *ready = (uint32_t *)l->scratch;
    __atomic_store_n(ready + (l->thread == 0 ? 1 : 2), 0, __ATOMIC_RELAXED);
    if (l->thread == 0) *ready = 0;
    kf_barrier(l);
    if (l->thread == 0) {
        for (int64_t i = 0; i < M * K; ++i) shared[i] = x[i / K * xs + i % K];
        __atomic_store_n(ready, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(ready, __ATOMIC_ACQUIRE)) __builtin_ia32_pause();
    for (int64_t n = l->thread; n < N; n += l->threads) {
        const float *row = w + n / 16 * 16 * K + n % 16;
        for (int64_t m = 0; m < M; ++m) {
            float acc = 0;
            for (int64_t b = 0; b < K; b += 128) {
                float block = 0;
                for (int64_t k = b; k < b + 128; ++k) block = kf::fma(shared[m * K + k], row[16 * k], block);
                acc = b ? acc + block : block;
            }
            out[m * os + n] = acc;
        }
    }
}

extern "C" int64_t kforge_scratch_bytes(const int64_t *axes, int32_t) { return 64 + axes[0] * 1024; }
