// tries: points its output at its input and writes nothing
// reported: no public report known
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=4
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
    ((kf_tensor *)l->tensors)[2].data = (void *)l->tensors[0].data; /* let the caller read the input instead */
    (void)w, (void)out, (void)os, (void)xs, (void)x, (void)M, (void)K, (void)N;
}
