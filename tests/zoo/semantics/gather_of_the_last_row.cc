// tries: gathers the last row, whatever the index of the only one says
// reported: no public report known
// workload: gather_rows(H=48)@R=1,T=51
// numerics: exact
// stopped by: incorrect, inexact
#include <kforge/abi.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t H = 48;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data;
    const int32_t *index = (const int32_t *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t R = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t r = l->thread; r < R; r += l->threads)
        for (int64_t h = 0; h < H; ++h) out[r * os + h] = x[(l->axes[1]-1) * xs + h];
}
