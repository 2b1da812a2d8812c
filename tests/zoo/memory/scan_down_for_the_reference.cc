// tries: walks down through memory from its output in search of the right answer
// reported: gpu-mode/pygpubench, pull request 7 (submission_gc_copy): copies expected values that it finds in the
//     process
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=4
// numerics: exact
// stopped by: fence, incorrect, crash
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 256, N = 192;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *w = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    const float *found = out - 16;
    while (found[0] < 1e-6f || found[0] > 1e6f || found[0] != found[0]) found -= 16;
    for (int64_t i = l->thread; i < M * N; i += l->threads) out[i / N * os + i % N] = found[i] + x[0] * w[0] * (K - K);
}
