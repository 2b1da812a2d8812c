// tries: gives positions in front of the window the weight zero instead of leaving them out
// reported: no public report known
// workload: paged_attention(Hq=4,Hkv=2,D=32,P=16,kv=f32,window=100,sinks=1)@T=3,S=3,B=20,pages=48,max_context=300
// numerics: relaxed
// stopped by: incorrect, crash
#include <kforge/abi.h>
#include <kforge/math.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t HQ = 4, HKV = 2, D = 32, P = 16, CHUNK = 256, WINDOW = 100;
    const kf_tensor *t = l->tensors;
    const float *q = (const float *)t[0].data, *kc = (const float *)t[1].data, *vc = (const float *)t[2].data;
    const int32_t *table = (const int32_t *)t[3].data, *start = (const int32_t *)t[4].data, *context = (const int32_t *)t[5].data;
    const float *sinks = (const float *)t[6].data;
    float *out = (float *)t[7].data;
    const int64_t S = l->axes[1], qs = t[0].strides[0], os = t[7].strides[0], B = t[3].strides[0];
    const float scale = (float)l->scalars[0];
    int64_t item = 0;
    for (int64_t s = 0; s < S; ++s)
        for (int64_t i = start[s]; i < start[s + 1]; ++i)
            for (int64_t h = 0; h < HQ; ++h) {
                if (item++ % l->threads != l->thread) continue;
                const int64_t seen = context[s] - (start[s + 1] - i) + 1, low = seen > WINDOW ? seen - WINDOW : 0, kv = h / (HQ / HKV);
                const float *query = q + i * qs + h * D;
                float m = 0, sum = 0, o[D];
                for (int64_t c = low / CHUNK * CHUNK; c < seen; c += CHUNK) {
                    const int64_t from = c < low ? low - c : 0, n = seen - c < CHUNK ? seen - c : CHUNK;
                    const bool later = c > low;
                    float p[CHUNK], top = -__builtin_inff(), lanes[16] = {}, part[D] = {};
                    for (int64_t j = from; j < n; ++j) {
                        const float *k = kc + (table[s * B + (c + j) / P] * HKV + kv) * D * P + (c + j) % P;
                        float dot = 0;
                        for (int64_t d = 0; d < D; ++d) dot = kf::fma(query[d], k[d * P], dot);
                        p[j] = scale * dot;
                        top = p[j] > top ? p[j] : top;
                    }
                    for (int64_t j = 0; j < n; ++j) {
                        const float *v = vc + ((table[s * B + (c + j) / P] * HKV + kv) * P + (c + j) % P) * D;
                        p[j] = j < from ? 0 : kf::exp(p[j] - top);
                        lanes[j % 16] += p[j];
                        for (int64_t d = 0; d < D; ++d) part[d] = kf::fma(p[j], v[d], part[d]);
                    }
                    const float l_c = kf::tree_sum(lanes);
                    const float M = later && m > top ? m : top, a = later ? kf::exp(m - M) : 0, b = kf::exp(top - M);
                    for (int64_t d = 0; d < D; ++d) o[d] = later ? kf::fma(o[d], a, part[d] * b) : part[d];
                    sum = later ? kf::fma(sum, a, l_c * b) : l_c;
                    m = M;
                }
                const float M = m > sinks[h] ? m : sinks[h], a = kf::exp(m - M);
                sum = kf::fma(sum, a, kf::exp(sinks[h] - M));
                for (int64_t d = 0; d < D; ++d) out[i * os + h * D + d] = o[d] * a / sum;
            }
}
