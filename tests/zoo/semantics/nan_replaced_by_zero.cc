// tries: turns NaN into zero
// reported: no public report known
// workload: silu_mul(I=88)@T=3
// numerics: relaxed
// stopped by: incorrect
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t I = 88;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data;
    float *out = (float *)t[1].data;
    const int64_t T = l->axes[0], xs = t[0].strides[0], os = t[1].strides[0];
    for (int64_t i = l->thread; i < T * I; i += l->threads) {
        const float gate = x[i / I * xs + i % I], up = x[i / I * xs + I + i % I];
        out[i / I * os + i % I] = gate == gate && up == up ? kf::silu(gate) * up : 0;
    }
}
