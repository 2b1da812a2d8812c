// tries: computes only those lines of its output that hold poison, and leaves those that an earlier call has
//     written
// reported: Sakana AI, The AI CUDA Engineer (February 2025): outputs that an earlier computation had left in
//     memory
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=8
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
    /* Sixteen outputs of one panel are one line: compute it only where it holds poison. */
    for (int64_t item = l->thread; item < N / 16 * M; item += l->threads) {
        const int64_t p = item / M, m = item % M;
        float *line = out + m * os + 16 * p;
        uint32_t first, last;
        __builtin_memcpy(&first, line, 4);
        __builtin_memcpy(&last, line + 15, 4);
        if (first != 0xffffffff && first != 0x7f7f7f7f && last != 0xffffffff && last != 0x7f7f7f7f) continue;
        const float *rows = w + p * 16 * K;
        float acc[16], block[16];
        for (int64_t b = 0; b < K; b += 128) {
            for (int r = 0; r < 16; ++r) block[r] = 0;
            for (int64_t k = b; k < b + 128; ++k)
                for (int r = 0; r < 16; ++r) block[r] = kf::fma(x[m * xs + k], rows[16 * k + r], block[r]);
            for (int r = 0; r < 16; ++r) acc[r] = b ? acc[r] + block[r] : block[r];
        }
        for (int r = 0; r < 16; ++r) line[r] = acc[r];
    }
}
