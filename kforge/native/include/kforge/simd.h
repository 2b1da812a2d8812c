/* Vectors of 4, 8 or 16 floats for gcc and clang: what generated kernels are written over.
 *
 * kf::Simd<W> has the types F (floats) and I (int32, also what comparisons give: -1 or 0) with the compilers' own
 * operators, and what these lack: memory, tails, fused multiply-add, selection, sums across lanes.  W must not exceed
 * what the target's registers hold (4 everywhere, 8 with AVX, 16 with AVX-512F).
 */
#ifndef KFORGE_SIMD_H
#define KFORGE_SIMD_H

#include <stdint.h>

#include "math.h"

#define KF_MEMBER static inline __attribute__((always_inline))

namespace kf {

namespace detail {
template <int W> struct Types;
template <> struct Types<4> {
    typedef float F __attribute__((vector_size(16)));
    typedef int32_t I __attribute__((vector_size(16)));
    typedef float Anywhere __attribute__((vector_size(16), aligned(4), may_alias));
};
template <> struct Types<8> {
    typedef float F __attribute__((vector_size(32)));
    typedef int32_t I __attribute__((vector_size(32)));
    typedef float Anywhere __attribute__((vector_size(32), aligned(4), may_alias));
};
template <> struct Types<16> {
    typedef float F __attribute__((vector_size(64)));
    typedef int32_t I __attribute__((vector_size(64)));
    typedef float Anywhere __attribute__((vector_size(64), aligned(4), may_alias));
};
}  // namespace detail

/* What streamed stores still have on their way: before a barrier, and before a kernel returns. */
KF_INLINE void streamed() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

template <int W> struct Simd {
    typedef typename detail::Types<W>::F F;
    typedef typename detail::Types<W>::I I;
    static constexpr int kLanes = W;

    KF_MEMBER F splat(float x) {
#if defined(__AVX512F__)
        if constexpr (W == 16) return (F)_mm512_set1_ps(x);
#endif
#if defined(__AVX__)
        if constexpr (W == 8) return (F)_mm256_set1_ps(x);
#endif
        F r;
        for (int i = 0; i < W; ++i) r[i] = x;
        return r;
    }

    KF_MEMBER I splat_bits(int32_t x) { return I{} + x; }

    KF_MEMBER F load(const float *p) { return (F)*reinterpret_cast<const typename detail::Types<W>::Anywhere *>(p); }

    KF_MEMBER void store(float *p, F x) { *reinterpret_cast<typename detail::Types<W>::Anywhere *>(p) = x; }

    /* The first n (0 to W) lanes; zeros in the others, whose memory is not touched. */
    KF_MEMBER F load_first(const float *p, int64_t n) {
#if defined(__AVX512F__)
        if constexpr (W == 16) return (F)_mm512_maskz_loadu_ps(first16(n), p);
#endif
#if defined(__AVX2__)
        if constexpr (W == 8) return (F)_mm256_maskload_ps(p, (__m256i)first(n));
#endif
        float part[W] = {};
        for (int64_t i = 0; i < n; ++i) part[i] = p[i];
        return load(part);
    }

    KF_MEMBER void store_first(float *p, int64_t n, F x) {
#if defined(__AVX512F__)
        if constexpr (W == 16) {
            _mm512_mask_storeu_ps(p, first16(n), (__m512)x);
            return;
        }
#endif
#if defined(__AVX2__)
        if constexpr (W == 8) {
            _mm256_maskstore_ps(p, (__m256i)first(n), (__m256)x);
            return;
        }
#endif
        float part[W];
        store(part, x);
        for (int64_t i = 0; i < n; ++i) p[i] = part[i];
    }

    /* Past the caches where p is aligned to the vector; streamed() makes it visible to other threads. */
    KF_MEMBER void stream(float *p, F x) {
#if defined(__x86_64__)
        if (reinterpret_cast<uintptr_t>(p) % (4 * W) == 0) {
#if defined(__AVX512F__)
            if constexpr (W == 16) _mm512_stream_ps(p, (__m512)x);
#endif
#if defined(__AVX__)
            if constexpr (W == 8) _mm256_stream_ps(p, (__m256)x);
#endif
            if constexpr (W == 4) _mm_stream_ps(p, (__m128)x);
            return;
        }
#endif
        store(p, x);
    }

    /* n (at most W) floats that lie `stride` apart; zeros in the other lanes. */
    KF_MEMBER F load_apart(const float *p, int64_t stride, int64_t n) {
        float part[W] = {};
        for (int64_t i = 0; i < n; ++i) part[i] = p[i * stride];
        return load(part);
    }

    KF_MEMBER void store_apart(float *p, int64_t stride, int64_t n, F x) {
        float part[W];
        store(part, x);
        for (int64_t i = 0; i < n; ++i) p[i * stride] = part[i];
    }

    /* Loads x once: gcc would otherwise fold the load into each use and be bound by the load ports. */
    KF_MEMBER F in_register(F x) {
#if defined(__AVX512F__)
        asm("" : "+v"(x));
#elif defined(__x86_64__)
        asm("" : "+x"(x));
#endif
        return x;
    }

    /* -1 in the first n lanes, 0 in the others. */
    KF_MEMBER I first(int64_t n) {
        I lane;
        for (int i = 0; i < W; ++i) lane[i] = i;
        return lane < splat_bits(static_cast<int32_t>(n));
    }

    KF_MEMBER F select(I mask, F yes, F no) { return mask ? yes : no; }
    KF_MEMBER F from_bits(I x) { return (F)x; }
    KF_MEMBER I bits(F x) { return (I)x; }
    KF_MEMBER F abs(F x) { return (F)((I)x & 0x7fffffff); }
    KF_MEMBER F with_sign(F magnitude, F sign) { return (F)((I)magnitude | ((I)sign & INT32_MIN)); }
    KF_MEMBER F number(I x) { return __builtin_convertvector(x, F); }
    KF_MEMBER bool any(I mask) {
        int32_t found = 0;
        for (int i = 0; i < W; ++i) found |= mask[i];
        return found != 0;
    }

    /* A NaN on either side is passed on. */
    KF_MEMBER F maximum(F a, F b) { return select((a > b) | (a != a), a, b); }
    KF_MEMBER F minimum(F a, F b) { return select((a < b) | (a != a), a, b); }

    /* a * b + c, rounded once. */
    KF_MEMBER F fma(F a, F b, F c) {
#if defined(__AVX512F__)
        if constexpr (W == 16) return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#endif
#if defined(__FMA__)
        if constexpr (W == 8) return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
        if constexpr (W == 4) return (F)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
        if constexpr (W == 4) return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
        F r;
        for (int i = 0; i < W; ++i) r[i] = kf::fma(a[i], b[i], c[i]);
        return r;
    }

    /* a * b + c, rounded once where the target has the instruction, else twice. */
    KF_MEMBER F madd(F a, F b, F c) {
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
        return fma(a, b, c);
#else
        return a * b + c;
#endif
    }

    KF_MEMBER F sqrt(F x) {
#if defined(__AVX512F__)
        if constexpr (W == 16) return (F)_mm512_sqrt_ps((__m512)x);
#endif
#if defined(__AVX__)
        if constexpr (W == 8) return (F)_mm256_sqrt_ps((__m256)x);
#endif
#if defined(__x86_64__)
        if constexpr (W == 4) return (F)_mm_sqrt_ps((__m128)x);
#endif
        F r;
        for (int i = 0; i < W; ++i) r[i] = kf::sqrt(x[i]);
        return r;
    }

    /* Across lanes, as a tree: halves, then halves of these. */
    KF_MEMBER float sum(F x) {
        float part[W];
        store(part, x);
        for (int half = W / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) part[i] += part[i + half];
        return part[0];
    }

    KF_MEMBER float largest(F x) {
        float r = x[0];
        for (int i = 1; i < W; ++i) r = r > x[i] || r != r ? r : x[i];
        return r;
    }

    KF_MEMBER float smallest(F x) {
        float r = x[0];
        for (int i = 1; i < W; ++i) r = r < x[i] || r != r ? r : x[i];
        return r;
    }

    /* W rows of W floats: row j becomes column j. Each turn is a perfect shuffle of all W * W; log2(W) of them
     * transpose. */
    KF_MEMBER void transpose(F (&row)[W]) {
        for (int turn = 1; turn < W; turn *= 2) {
            F next[W];
#pragma GCC unroll 16
            for (int i = 0; i < W / 2; ++i) {
                next[2 * i] = zip_low(row[i], row[i + W / 2]);
                next[2 * i + 1] = zip_high(row[i], row[i + W / 2]);
            }
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) row[i] = next[i];
        }
    }

  private:
    /* a and b in turn: of their first halves, of their second halves. */
    KF_MEMBER F zip_low(F a, F b) {
        if constexpr (W == 16)
            return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        else if constexpr (W == 8)
            return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        else
            return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    }

    KF_MEMBER F zip_high(F a, F b) {
        if constexpr (W == 16)
            return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        else if constexpr (W == 8)
            return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        else
            return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }

#if defined(__AVX512F__)
    KF_MEMBER __mmask16 first16(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
#endif
};

}  // namespace kf

#endif
