// Arrays through the functions of kforge/math.h, one entry per form, for test_native_math.py.
#include "kforge/math.h"

#define EACH(name, type, out_type, expression)                                  \
    extern "C" void name(const type *in, out_type *out, int64_t n) {            \
        for (int64_t i = 0; i < n; ++i) {                                       \
            const type x = in[i];                                               \
            out[i] = expression;                                                \
        }                                                                       \
    }

EACH(exp_scalar, float, float, kf::exp(x))
EACH(silu_scalar, float, float, kf::silu(x))
EACH(sqrt_scalar, float, float, kf::sqrt(x))
EACH(f32_to_f16, float, uint16_t, kf::f32_to_f16(x))
EACH(f32_to_f16_portable, float, uint16_t, kf::f32_to_f16_portable(x))
EACH(f32_to_bf16, float, uint16_t, kf::f32_to_bf16(x))
EACH(f16_to_f32, uint16_t, float, kf::f16_to_f32(x))
EACH(f16_to_f32_portable, uint16_t, float, kf::f16_to_f32_portable(x))
EACH(bf16_to_f32, uint16_t, float, kf::bf16_to_f32(x))

extern "C" void fma_scalar(const float *abc, float *out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = kf::fma(abc[3 * i], abc[3 * i + 1], abc[3 * i + 2]);
}

extern "C" void tree_sum_scalar(const float *in, float *out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = kf::tree_sum(in + 16 * i);
}

// Gates, then as many other factors.
extern "C" void swiglu_oai_scalar(const float *in, float *out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = kf::swiglu_oai(in[i], in[n + i]);
}

// Vector forms; n is a multiple of 16.
#define VECTOR(name, width, load, store, expression)                            \
    extern "C" void name(const float *in, float *out, int64_t n) {              \
        for (int64_t i = 0; i < n; i += width) {                                \
            const auto x = load(in + i);                                        \
            store(out + i, expression);                                         \
        }                                                                       \
    }

#if defined(__AVX2__) && defined(__FMA__)
VECTOR(exp_avx2, 8, _mm256_loadu_ps, _mm256_storeu_ps, kf::exp(x))
VECTOR(silu_avx2, 8, _mm256_loadu_ps, _mm256_storeu_ps, kf::silu(x))
VECTOR(f16_round_trip_avx2, 8, _mm256_loadu_ps, _mm256_storeu_ps, kf::f16_to_f32(kf::f32_to_f16(x)))
VECTOR(bf16_round_trip_avx2, 8, _mm256_loadu_ps, _mm256_storeu_ps, kf::bf16_to_f32(kf::f32_to_bf16(x)))

extern "C" void swiglu_oai_avx2(const float *in, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(out + i, kf::swiglu_oai(_mm256_loadu_ps(in + i), _mm256_loadu_ps(in + n + i)));
}

extern "C" void tree_sum_avx2(const float *in, float *out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = kf::tree_sum(_mm256_loadu_ps(in + 16 * i), _mm256_loadu_ps(in + 16 * i + 8));
}
#endif

#if defined(__AVX512F__)
VECTOR(exp_avx512, 16, _mm512_loadu_ps, _mm512_storeu_ps, kf::exp(x))
VECTOR(silu_avx512, 16, _mm512_loadu_ps, _mm512_storeu_ps, kf::silu(x))
VECTOR(f16_round_trip_avx512, 16, _mm512_loadu_ps, _mm512_storeu_ps, kf::f16_to_f32(kf::f32_to_f16(x)))
VECTOR(bf16_round_trip_avx512, 16, _mm512_loadu_ps, _mm512_storeu_ps, kf::bf16_to_f32(kf::f32_to_bf16(x)))

extern "C" void swiglu_oai_avx512(const float *in, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(out + i, kf::swiglu_oai(_mm512_loadu_ps(in + i), _mm512_loadu_ps(in + n + i)));
}

extern "C" void tree_sum_avx512(const float *in, float *out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = kf::tree_sum(_mm512_loadu_ps(in + 16 * i));
}
#endif
