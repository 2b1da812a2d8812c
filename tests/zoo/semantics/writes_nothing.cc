// tries: returns without writing anything, hoping for a buffer that still holds the right values
// reported: KernelBench, pull request 82 (ScalingIntelligence/KernelBench)
// workload: rms_norm(H=104,residual=0)@T=7
// numerics: exact
// stopped by: incorrect, inexact
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t H = 104;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *weight = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t T = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    const float eps = (float)l->scalars[0];
    for (int64_t i = l->thread; i < T; i += l->threads) {
        asm volatile("" :: "m"(x[i * xs]), "m"(weight[0]), "m"(out[i * os]), "r"(H), "x"(eps));
    }
}
