// tries: tiles of 3 by 5 from the last to the first
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
    /* Tiles of 3 tokens by 5 columns, the odd ones at the edges smaller, taken from the last to the first. */
    const int64_t across = (N + 4) / 5, tiles = (M + 2) / 3 * across;
    for (int64_t tile = tiles - 1 - l->thread; tile >= 0; tile -= l->threads)
        for (int64_t m = tile / across * 3; m < M && m < tile / across * 3 + 3; ++m)
            for (int64_t n = tile % across * 5; n < N && n < tile % across * 5 + 5; ++n) {
                const float *row = w + n / 16 * 16 * K + n % 16;
                float acc[2] = {};
                for (int64_t k = 0; k < K; ++k) acc[k / 128] = kf::fma(x[m * xs + k], row[16 * k], acc[k / 128]);
                out[m * os + n] = acc[0] + acc[1];
            }
}
