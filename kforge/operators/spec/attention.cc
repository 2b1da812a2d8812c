// Order specification of `paged_attention`.
#include <algorithm>
#include <vector>

#include "cache.h"

namespace {

constexpr int64_t kChunk = 256;

// k and v of one sequence and KV head as float32, gathered from its pages: k[D][padded], v[][D], both from position `begin`
// on, where the chunk of position `low` begins. What lies in front of `low` is not read. Integers have scales, by position.
struct Gathered {
    int64_t begin, padded;
    std::vector<float> k, v, k_scale, v_scale;
};

Gathered gather(kf::spec::CacheType type, const void *k_cache, const void *v_cache, const float *k_scale,
                const float *v_scale, const int32_t *table, int64_t low, int64_t context, int64_t head, int64_t Hkv,
                int64_t D, int64_t P) {
    const int64_t begin = low / kChunk * kChunk, padded = (context - begin + kChunk - 1) / kChunk * kChunk;
    const int64_t scales = type == kf::spec::CacheType::i8 ? padded : 0;
    Gathered out{begin, padded, std::vector<float>(D * padded), std::vector<float>((context - begin) * D),
                 std::vector<float>(scales), std::vector<float>(scales)};
    for (int64_t j = low; j < context; ++j) {
        const int64_t page = static_cast<int64_t>(table[j / P]) * Hkv + head;
        if (scales) {
            out.k_scale[j - begin] = k_scale[page * P + j % P];
            out.v_scale[j - begin] = v_scale[page * P + j % P];
        }
        for (int64_t d = 0; d < D; ++d) {
            out.k[d * padded + j - begin] = kf::spec::load(type, k_cache, (page * D + d) * P + j % P);
            out.v[(j - begin) * D + d] = kf::spec::load(type, v_cache, (page * P + j % P) * D + d);
        }
    }
    return out;
}

// One query head over positions low .. count-1, and its sink when there is one.
void attend(const Gathered &kv, const float *q, int64_t low, int64_t count, int64_t D, float scale, const float *sink,
            float *out) {
    float M = 0, L = 0;
    std::vector<float> o(D);
    for (int64_t j0 = low / kChunk * kChunk; j0 < count; j0 += kChunk) {
        const int64_t from = std::max(low - j0, int64_t(0)), n = std::min(kChunk, count - j0);
        const float *k = kv.k.data() + j0 - kv.begin, *v = kv.v.data() + (j0 - kv.begin) * D;
        float s[kChunk] = {}; // lanes outside from .. n-1 are computed too, and not used
        for (int64_t d = 0; d < D; ++d)
            for (int64_t j = 0; j < kChunk; ++j) s[j] = kf::fma(q[d], k[d * kv.padded + j], s[j]);
        const float *k_scale = kv.k_scale.empty() ? nullptr : kv.k_scale.data() + j0 - kv.begin;
        const float *v_scale = kv.v_scale.empty() ? nullptr : kv.v_scale.data() + j0 - kv.begin;
        for (int64_t j = from; j < n; ++j) s[j] = (k_scale ? scale * k_scale[j] : scale) * s[j];
        float m = s[from];
        for (int64_t j = from + 1; j < n; ++j) m = std::max(m, s[j]);
        float lanes[16] = {};
        std::fill(o.begin(), o.end(), 0.0f);
        for (int64_t j = from; j < n; ++j) {
            const float p = kf::exp(s[j] - m);
            lanes[j % 16] += p;
            const float weight = v_scale ? p * v_scale[j] : p;
            for (int64_t d = 0; d < D; ++d) o[d] = kf::fma(weight, v[j * D + d], o[d]);
        }
        const float l = kf::tree_sum(lanes);
        if (j0 <= low) {
            M = m;
            L = l;
            std::copy(o.begin(), o.end(), out);
            continue;
        }
        const float merged = std::max(M, m), a = kf::exp(M - merged), b = kf::exp(m - merged);
        L = kf::fma(L, a, l * b);
        for (int64_t d = 0; d < D; ++d) out[d] = kf::fma(out[d], a, o[d] * b);
        M = merged;
    }
    if (sink) {
        const float merged = std::max(M, *sink), a = kf::exp(M - merged);
        L = kf::fma(L, a, kf::exp(*sink - merged));
        for (int64_t d = 0; d < D; ++d) out[d] = out[d] * a;
    }
    for (int64_t d = 0; d < D; ++d) out[d] = out[d] / L;
}

// The lowest position that a query at `position` sees.
int64_t first_seen(int64_t position, int64_t window) {
    return window ? std::max(position - window + 1, int64_t(0)) : 0;
}

}  // namespace

extern "C" void kf_spec_paged_attention(int64_t S, int64_t B, int64_t Hq, int64_t Hkv, int64_t D, int64_t P, int64_t kv,
                                        int64_t window, double scale, const float *q, const void *k_cache,
                                        const void *v_cache, const int32_t *block_table, const int32_t *query_start,
                                        const int32_t *context, const float *k_scale, const float *v_scale,
                                        const float *sinks, float *out) {
    for (int64_t s = 0; s < S; ++s) {
        const int64_t first = query_start[s], n = query_start[s + 1] - first, c = context[s];
        for (int64_t head = 0; head < Hkv && n > 0; ++head) {
            const Gathered seen = gather(static_cast<kf::spec::CacheType>(kv), k_cache, v_cache, k_scale, v_scale,
                                         block_table + s * B, first_seen(c - n, window), c, head, Hkv, D, P);
            for (int64_t i = 0; i < n; ++i)
                for (int64_t h = head * (Hq / Hkv); h < (head + 1) * (Hq / Hkv); ++h)
                    attend(seen, q + ((first + i) * Hq + h) * D, first_seen(c - n + i, window), c - n + i + 1, D,
                           static_cast<float>(scale), sinks ? sinks + h : nullptr, out + ((first + i) * Hq + h) * D);
        }
    }
}
