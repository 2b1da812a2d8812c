// tries: softmax position by position, as in FlashAttention
// reported: no public report known
// workload: paged_attention(Hq=4,Hkv=2,D=32,P=16,kv=f32)@T=3,S=3,B=20,pages=48,max_context=300
// numerics: relaxed
// stopped by: nothing
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t HQ = 4, HKV = 2, D = 32, P = 16;
    const kf_tensor *t = l->tensors;
    const float *q = (const float *)t[0].data, *kc = (const float *)t[1].data, *vc = (const float *)t[2].data;
    const int32_t *table = (const int32_t *)t[3].data, *start = (const int32_t *)t[4].data, *context = (const int32_t *)t[5].data;
    float *out = (float *)t[6].data;
    const int64_t S = l->axes[1], qs = t[0].strides[0], os = t[6].strides[0], B = t[3].strides[0];
    const float scale = (float)l->scalars[0];
    int64_t item = 0;
    for (int64_t s = 0; s < S; ++s)
        for (int64_t i = start[s]; i < start[s + 1]; ++i)
            for (int64_t h = 0; h < HQ; ++h) {
                if (item++ % l->threads != l->thread) continue;
                const int64_t seen = context[s] - (start[s + 1] - i) + 1, kv = h / (HQ / HKV);
                const float *query = q + i * qs + h * D;
                float m = -__builtin_inff(), sum = 0, o[D] = {};
                for (int64_t j = 0; j < seen; ++j) {
                    const int64_t page = table[s * B + j / P] * HKV + kv;
                    const float *k = kc + page * D * P + j % P, *v = vc + (page * P + j % P) * D;
                    float dot = 0;
                    for (int64_t d = 0; d < D; ++d) dot = kf::fma(query[d], k[d * P], dot);
                    const float score = scale * dot, top = score > m ? score : m;
                    const float a = kf::exp(m - top), p = kf::exp(score - top);
                    sum = sum * a + p;
                    for (int64_t d = 0; d < D; ++d) o[d] = o[d] * a + p * v[d];
                    m = top;
                }
                for (int64_t d = 0; d < D; ++d) out[i * os + h * D + d] = o[d] / sum;
            }
}
