/* Arithmetic of kforge's order specifications: exp, SiLU, half-precision conversions and the 16-lane sum.
 *
 * Freestanding: no libc, no libm, nothing but integer types and the compiler's intrinsics.  Scalar, ASIMD, AVX2 and AVX-512 forms
 * return the same bits for every input (NaN stays NaN, its payload is unspecified), so a kernel may mix them freely.
 * They assume round to nearest even, no flushing of denormals, and -ffp-contract=off.
 */
#ifndef KFORGE_MATH_H
#define KFORGE_MATH_H

#if !defined(KFORGE_DEVICE) /* device.h gives GPUs the integer types, KF_INLINE and what is left out below */

#include <stdint.h>

#if defined(__x86_64__)
#if !__STDC_HOSTED__ && !defined(_MM_MALLOC_H_INCLUDED)
#define _MM_MALLOC_H_INCLUDED /* gcc's immintrin.h would pull in stdlib.h for _mm_malloc */
#endif
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define KF_INLINE static inline __attribute__((always_inline, unused))
#define KF_CONSTEXPR constexpr /* functions */

namespace kf {

KF_INLINE uint32_t bits(float x) {
    uint32_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    return u;
}

KF_INLINE float from_bits(uint32_t u) {
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

/* a * b + c with one rounding.  Without an FMA instruction: the product is exact in double, the sum is rounded to odd
 * there, and the final rounding to float is then correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded
 * sums: proved algorithms using rounding to odd", 2008). */
KF_INLINE float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    const double p = static_cast<double>(a) * static_cast<double>(b), z = c, s = p + z;
    const double t = s - p, err = (p - (s - t)) + (z - t);
    uint64_t u;
    __builtin_memcpy(&u, &s, sizeof u);
    if (err != 0 && (u & 1) == 0 && (u >> 52 & 0x7ff) != 0x7ff) {
        u += (err > 0) == (s > 0) ? 1 : uint64_t(-1);
        double odd;
        __builtin_memcpy(&odd, &u, sizeof odd);
        return static_cast<float>(odd);
    }
    return static_cast<float>(s);
#endif
}

KF_INLINE float sqrt(float x) {
#if defined(__x86_64__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#elif defined(__aarch64__)
    return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0);
#else
    return __builtin_sqrtf(x);
#endif
}

}  // namespace kf

#endif

namespace kf {

KF_INLINE float abs(float x) { return from_bits(bits(x) & 0x7fffffffu); }

/* Nearest integer, ties to even, for |x| < 2^22. */
KF_INLINE float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

/* 127 / amax of a group of activations.  Groups below 1e-30 quantise to zeros: 127 / amax would overflow. */
KF_INLINE float a8_inverse(float amax) { return amax >= 1e-30f ? 127.0f / amax : 0.0f; }

/* The scale of a group: amax / 127, and NaN for a group with a NaN or an infinity, so that neither is hidden.  For that amax is
 * taken over the bits: among the bits of absolute values NaNs are the largest. */
KF_INLINE float a8_scale(float amax) { return amax / 127.0f + (amax - amax); }

/* One int8 activation from x and a8_inverse: clamp(round_even(x * inverse), -127, 127); any for a NaN. */
KF_INLINE int32_t a8_quantize(float x, float inverse) {
    const float q = round_even(x * inverse);
    return static_cast<int32_t>(q >= -127.0f ? q > 127.0f ? 127.0f : q : -127.0f);
}

/* Named constants of functions that GPUs have too: to NVRTC those of a namespace are variables in the device's memory. */
#define KF_EXP_CONSTANTS                                                                                                      \
    constexpr float kExpLow = -104.0f, kExpHigh = 89.0f; /* beyond: 0 and inf come out of the scaling by themselves */        \
    constexpr float kLog2e = 0x1.715476p+0f, kLn2High = 0x1.62e430p-1f, kLn2Low = -0x1.05c610p-29f;                           \
    constexpr float kMagic = 0x1.8p23f; /* adding it rounds to an integer, in the low bits of the sum */                      \
    constexpr float kQ0 = 0x1.fffffcp-2f, kQ1 = 0x1.555492p-3f, kQ2 = 0x1.5558aep-5f, kQ3 = 0x1.12397cp-7f, kQ4 = 0x1.6a4f46p-10f;
#define KF_SWIGLU_CONSTANTS constexpr float kSwigluLimit = 7.0f, kSwigluAlpha = 1.702f;

#if !defined(KFORGE_DEVICE)
namespace detail {
KF_EXP_CONSTANTS
KF_SWIGLU_CONSTANTS
}  // namespace detail
#endif

/* exp(x) = 2^n * exp(r), n = round(x / ln 2), r = x - n ln2 by Cody and Waite (the first step is exact with an FMA),
 * exp(r) = 1 + r (1 + r q(r)) with q a minimax polynomial of degree 4 on |r| <= ln2 / 2 (relative error 3.2e-9). */

/* e^x, error at most 0.9 ulp (every float from 2^-12 tried), denormal results included; exp(nan) is nan. */
KF_INLINE float exp(float x) {
    KF_EXP_CONSTANTS
    x = kExpLow > x ? kExpLow : x; /* NaN passes both */
    x = kExpHigh < x ? kExpHigh : x;
    const float t = kf::fma(x, kLog2e, kMagic), n = t - kMagic;
    const float r = kf::fma(-n, kLn2Low, kf::fma(-n, kLn2High, x));
    const float q = kf::fma(kf::fma(kf::fma(kf::fma(kQ4, r, kQ3), r, kQ2), r, kQ1), r, kQ0);
    const float y = kf::fma(kf::fma(q, r, 1.0f), r, 1.0f);
    const int32_t i = static_cast<int32_t>(bits(t) - bits(kMagic)), half = i >> 1;
    const float s = from_bits(static_cast<uint32_t>(half + 127) << 23); /* two steps: only the second one can round */
    return (y * s) * from_bits(static_cast<uint32_t>(i - half + 127) << 23);
}

KF_INLINE float silu(float x) { return x / (1.0f + kf::exp(-x)); }

/* The clamped gate of GPT-OSS: (up + 1) * gate * sigmoid(1.702 gate), with gate at most 7 and up within +-7. A NaN stays one. */
KF_INLINE float swiglu_oai(float gate, float up) {
    KF_SWIGLU_CONSTANTS
    const float g = gate > kSwigluLimit ? kSwigluLimit : gate;
    const float u = up > kSwigluLimit ? kSwigluLimit : up < -kSwigluLimit ? -kSwigluLimit : up;
    return (u + 1.0f) * (g / (1.0f + kf::exp(-(kSwigluAlpha * g))));
}

/* The tree over 16 lanes: l and l+8, then +4, +2, +1. */
KF_INLINE float tree_sum(const float lanes[16]) {
    float a[8], b[4];
    for (int l = 0; l < 8; ++l) a[l] = lanes[l] + lanes[l + 8];
    for (int l = 0; l < 4; ++l) b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* float16 and bfloat16 by integer arithmetic, round to nearest even, denormals kept, NaN quietened (as the hardware's float16
 * conversions do).  Beware of VCVTNEPS2BF16: it flushes denormals, so f32_to_bf16 below does not use it. */
KF_INLINE float f16_to_f32_portable(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00)
        return from_bits(sign | 0x7f800000u | magnitude << 13 | (magnitude > 0x7c00 ? 0x400000u : 0u));
    /* shift the exponent's bias by a multiplication with 2^112, which also normalises denormals */
    return from_bits(sign | bits(from_bits(magnitude << 13) * 0x1p112f));
}

KF_INLINE uint16_t f32_to_f16_portable(float x) {
    const uint32_t u = bits(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00); /* 65520 and above round to infinity */
    if (magnitude < 0x38800000) /* below 2^-14: adding 0.5 leaves the denormal's integer, rounded, in the low bits */
        return static_cast<uint16_t>(sign | (bits(from_bits(magnitude) + 0.5f) - 0x3f000000u));
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

KF_INLINE float f16_to_f32(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#elif defined(__aarch64__)
    __fp16 x; /* one instruction, to nearest even and with denormals, as FPCR says at its default */
    __builtin_memcpy(&x, &h, sizeof x);
    return static_cast<float>(x);
#else
    return f16_to_f32_portable(h);
#endif
}

KF_INLINE uint16_t f32_to_f16(float x) {
#if defined(__F16C__)
    return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    const __fp16 y = static_cast<__fp16>(x);
    uint16_t h;
    __builtin_memcpy(&h, &y, sizeof h);
    return h;
#else
    return f32_to_f16_portable(x);
#endif
}

KF_INLINE float bf16_to_f32(uint16_t h) { return from_bits(static_cast<uint32_t>(h) << 16); }

KF_INLINE uint16_t f32_to_bf16(float x) {
    const uint32_t u = bits(x);
    if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(u >> 16 | 0x40);
    return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#if defined(__aarch64__)
KF_INLINE float32x4_t exp(float32x4_t x) {
    using namespace detail;
    const float32x4_t low = vdupq_n_f32(kExpLow), high = vdupq_n_f32(kExpHigh), magic = vdupq_n_f32(kMagic);
    x = vbslq_f32(vcgtq_f32(low, x), low, x); /* NaN passes both */
    x = vbslq_f32(vcltq_f32(high, x), high, x);
    const float32x4_t t = vfmaq_f32(magic, x, vdupq_n_f32(kLog2e)), n = vsubq_f32(t, magic);
    const float32x4_t r = vfmsq_f32(vfmsq_f32(x, n, vdupq_n_f32(kLn2High)), n, vdupq_n_f32(kLn2Low));
    float32x4_t q = vfmaq_f32(vdupq_n_f32(kQ3), vdupq_n_f32(kQ4), r);
    q = vfmaq_f32(vdupq_n_f32(kQ2), q, r);
    q = vfmaq_f32(vdupq_n_f32(kQ1), q, r);
    q = vfmaq_f32(vdupq_n_f32(kQ0), q, r);
    const float32x4_t one = vdupq_n_f32(1.0f), y = vfmaq_f32(one, vfmaq_f32(one, q, r), r);
    const int32x4_t i = vsubq_s32(vreinterpretq_s32_f32(t), vreinterpretq_s32_f32(magic)), half = vshrq_n_s32(i, 1);
    const int32x4_t bias = vdupq_n_s32(127);
    const int32x4_t s = vshlq_n_s32(vaddq_s32(half, bias), 23), rest = vshlq_n_s32(vaddq_s32(vsubq_s32(i, half), bias), 23);
    return vmulq_f32(vmulq_f32(y, vreinterpretq_f32_s32(s)), vreinterpretq_f32_s32(rest));
}

KF_INLINE float32x4_t silu(float32x4_t x) { return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), kf::exp(vnegq_f32(x)))); }

/* Lanes 4i .. 4i+3 in the i-th vector. */
KF_INLINE float tree_sum(float32x4_t v0, float32x4_t v1, float32x4_t v2, float32x4_t v3) {
    const float32x4_t b = vaddq_f32(vaddq_f32(v0, v2), vaddq_f32(v1, v3));
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}

KF_INLINE float32x4_t f16_to_f32(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
KF_INLINE uint16x4_t f32_to_f16(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
KF_INLINE float32x4_t bf16_to_f32(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }

KF_INLINE uint16x4_t f32_to_bf16(float32x4_t x) {
    const uint32x4_t u = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), 16);
    const uint32x4_t quiet = vorrq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet));
}
#endif

#if defined(__AVX2__) && defined(__FMA__)
KF_INLINE __m256 exp(__m256 x) {
    using namespace detail;
    x = _mm256_max_ps(_mm256_set1_ps(kExpLow), x); /* the second operand survives when one is NaN */
    x = _mm256_min_ps(_mm256_set1_ps(kExpHigh), x);
    const __m256 magic = _mm256_set1_ps(kMagic), t = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2e), magic);
    const __m256 n = _mm256_sub_ps(t, magic);
    const __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Low), _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2High), x));
    __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(kQ4), r, _mm256_set1_ps(kQ3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kQ2));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kQ1));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(kQ0));
    const __m256 one = _mm256_set1_ps(1.0f), y = _mm256_fmadd_ps(_mm256_fmadd_ps(q, r, one), r, one);
    const __m256i i = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic)), half = _mm256_srai_epi32(i, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i s = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i rest = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(s)), _mm256_castsi256_ps(rest));
}

KF_INLINE __m256 silu(__m256 x) {
    const __m256 minus = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), kf::exp(minus)));
}

KF_INLINE __m256 swiglu_oai(__m256 gate, __m256 up) {
    const __m256 one = _mm256_set1_ps(1.0f), limit = _mm256_set1_ps(detail::kSwigluLimit);
    const __m256 g = _mm256_min_ps(limit, gate); /* the second operand survives when one is NaN */
    const __m256 u = _mm256_max_ps(_mm256_set1_ps(-detail::kSwigluLimit), _mm256_min_ps(limit, up));
    const __m256 minus = _mm256_xor_ps(_mm256_mul_ps(_mm256_set1_ps(detail::kSwigluAlpha), g), _mm256_set1_ps(-0.0f));
    return _mm256_mul_ps(_mm256_add_ps(u, one), _mm256_div_ps(g, _mm256_add_ps(one, kf::exp(minus))));
}

/* Lanes 0..7 in low, 8..15 in high. */
KF_INLINE float tree_sum(__m256 low, __m256 high) {
    const __m256 a = _mm256_add_ps(low, high);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

KF_INLINE __m256 bf16_to_f32(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }

KF_INLINE __m128i f32_to_bf16(__m256 x) {
    const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

#if defined(__F16C__)
KF_INLINE __m256 f16_to_f32(__m128i h) { return _mm256_cvtph_ps(h); }
KF_INLINE __m128i f32_to_f16(__m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
#endif
#endif

#if defined(__AVX512F__)
KF_INLINE __m512 exp(__m512 x) {
    using namespace detail;
    x = _mm512_max_ps(_mm512_set1_ps(kExpLow), x);
    x = _mm512_min_ps(_mm512_set1_ps(kExpHigh), x);
    const __m512 magic = _mm512_set1_ps(kMagic);
    const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(kLog2e), magic), magic);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Low), _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2High), x));
    __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(kQ4), r, _mm512_set1_ps(kQ3));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kQ2));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kQ1));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(kQ0));
    const __m512 one = _mm512_set1_ps(1.0f), y = _mm512_fmadd_ps(_mm512_fmadd_ps(q, r, one), r, one);
    return _mm512_scalef_ps(y, n); /* rounds once, as the two steps of the scalar form do */
}

KF_INLINE __m512 silu(__m512 x) {
    const __m512 minus = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), kf::exp(minus)));
}

KF_INLINE __m512 swiglu_oai(__m512 gate, __m512 up) {
    const __m512 one = _mm512_set1_ps(1.0f), limit = _mm512_set1_ps(detail::kSwigluLimit);
    const __m512 g = _mm512_min_ps(limit, gate);
    const __m512 u = _mm512_max_ps(_mm512_set1_ps(-detail::kSwigluLimit), _mm512_min_ps(limit, up));
    const __m512i scaled = _mm512_castps_si512(_mm512_mul_ps(_mm512_set1_ps(detail::kSwigluAlpha), g));
    const __m512 minus = _mm512_castsi512_ps(_mm512_xor_si512(scaled, _mm512_set1_epi32(INT32_MIN)));
    return _mm512_mul_ps(_mm512_add_ps(u, one), _mm512_div_ps(g, _mm512_add_ps(one, kf::exp(minus))));
}

#if defined(__AVX2__) && defined(__FMA__)
KF_INLINE float tree_sum(__m512 x) {
    return tree_sum(_mm512_castps512_ps256(x), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
}
#endif

KF_INLINE __m512 f16_to_f32(__m256i h) { return _mm512_cvtph_ps(h); }
KF_INLINE __m256i f32_to_f16(__m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
KF_INLINE __m512 bf16_to_f32(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }

KF_INLINE __m256i f32_to_bf16(__m512 x) {
    const __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
}
#endif

}  // namespace kf

#endif
