// tries: calls the memcpy that kernels are given
// reported: no public report known
// workload: gather_rows(H=48)@R=4,T=9
// numerics: exact
// stopped by: nothing
#include <kforge/abi.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t H = 48;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data;
    const int32_t *index = (const int32_t *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t R = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t r = l->thread; r < R; r += l->threads)
        memcpy(out + r * os, x + index[r] * xs, H * sizeof(float));
}
