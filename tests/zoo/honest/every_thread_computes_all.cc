// tries: all threads write the same values to the same places
// reported: no public report known
// workload: silu_mul(I=88)@T=3
// numerics: exact
// stopped by: nothing
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t I = 88;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data;
    float *out = (float *)t[1].data;
    const int64_t T = l->axes[0], xs = t[0].strides[0], os = t[1].strides[0];
    for (int64_t i = 0; i < T * I; ++i) {
        const float gate = x[i / I * xs + i % I], up = x[i / I * xs + I + i % I];
        out[i / I * os + i % I] = kf::silu(gate) * up;
    }
}
