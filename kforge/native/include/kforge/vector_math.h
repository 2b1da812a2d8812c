/* Functions of vectors of floats for kernels of class relaxed: kf::Vector<W>, which is kf::Simd<W> and more.
 *
 * Errors are in units of the last place of the result (tests/operators/test_vector_math.py holds them), for every
 * input, denormals included: exp 0.9, log 1.5, tanh 3.5, sigmoid 2.5, erf 2.5, sin and cos 1.8, pow 0.6.  NaN,
 * infinities and zeros give what IEEE 754 recommends.  A scalar is lane 0 of a splat vector, so both forms have the
 * same bits.
 */
#ifndef KFORGE_VECTOR_MATH_H
#define KFORGE_VECTOR_MATH_H

#include <stdint.h>

#include "simd.h"

namespace kf {

namespace detail {

constexpr float kInfinity = __builtin_inff();

/* erf(x) = x p(x^2) for |x| < 1, and 1 - exp(-g(|x|)) from there to 4. p and g are minimax polynomials (Lawson's
 * iteration at Chebyshev's points); their own share of the error is 1.3e-9. */
constexpr float kErfNear[] = {0x1.496a28p-14f, -0x1.a3f6fcp-11f, 0x1.5405b2p-8f, -0x1.b7f90cp-6f,
                              0x1.ce2cf8p-4f,  -0x1.81273ep-2f,  0x1.20dd74p+0f};
constexpr float kErfFar[] = {-0x1.852dc4p-13f, 0x1.814d24p-9f, -0x1.654246p-6f, 0x1.a60a96p-4f,
                             0x1.46c582p-1f,   0x1.2085b2p+0f, 0x1.72e404p-12f};

/* 320 bits of (2 / pi) / 2^32. */
constexpr uint64_t kTwoOverPi[] = {0x00000000a2f9836eu, 0x4e441529fc2757d1u, 0xf534ddc0db629599u, 0x3c439041fe5163abu,
                                   0xdebbc561b7246e3au};

/* x = q pi/2 + r with |r| <= pi/4, for 2^12 <= |x| < inf: r, and q modulo 4.
 *
 * Payne and Hanek's method (Radian reduction for trigonometric functions, 1983): |x| = m 2^e with m an integer of 24
 * bits, and bits of 2/pi that m 2^e makes multiples of 4 are left out. What 128 bits behind them lose is below 2^-104 of
 * a turn. */
struct Reduced {
    float r;
    int32_t q;
};

static inline __attribute__((noinline, unused)) Reduced reduce_far(float x) {
    const uint32_t u = bits(x) & 0x7fffffffu;
    const int32_t from = static_cast<int32_t>(u >> 23) - 150 + 30; /* the first bit that matters: at least 19 */
    const uint64_t m = (u & 0x7fffffu) | 0x800000u;
    const uint64_t *word = kTwoOverPi + from / 64;
    const int32_t shift = from % 64;
    const uint64_t high = shift ? word[0] << shift | word[1] >> (64 - shift) : word[0];
    const uint64_t low = shift ? word[1] << shift | word[2] >> (64 - shift) : word[1];
    /* of 4 quadrants, modulo 1 */
    const unsigned __int128 turns = (static_cast<unsigned __int128>(high) << 64 | low) * m;
    const uint64_t top = static_cast<uint64_t>(turns >> 62);
    /* of a quadrant, as a signed fraction: from a half on it is the next one's */
    const int64_t part = static_cast<int64_t>(top);
    int32_t q = static_cast<int32_t>(turns >> 126) + static_cast<int32_t>(top >> 63);
    float r = static_cast<float>(static_cast<double>(part) * 0x1.921fb54442d18p-64);
    if (x < 0) r = -r, q = -q;
    return {r, q & 3};
}

/* log of a positive finite double: x = m 2^e, log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172; error about
 * 1e-15. */
KF_INLINE double log(double x) {
    uint64_t u;
    __builtin_memcpy(&u, &x, sizeof u);
    const uint64_t shifted = u - 0x3fe6a09e667f3bcdu; /* the bits of sqrt(1/2) */
    const int64_t e = static_cast<int64_t>(shifted) >> 52;
    u = (shifted & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;
    double m;
    __builtin_memcpy(&m, &u, sizeof m);
    const double s = (m - 1) / (m + 1), z = s * s;
    double sum = 0;
    for (int k = 19; k >= 1; k -= 2) sum = sum * z + 2.0 / k;
    return s * sum + static_cast<double>(e) * 0x1.62e42fefa39efp-1;
}

/* e^x for |x| < 700; error about 1e-15. */
KF_INLINE double exp(double x) {
    const double t = x * 0x1.71547652b82fep+0 + 0x1.8p52, n = t - 0x1.8p52;
    const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    double sum = 1;
    for (int k = 13; k >= 1; --k) sum = sum * r / k + 1;
    uint64_t u;
    __builtin_memcpy(&u, &t, sizeof u);
    u = (u + 1023) << 52;
    double scale;
    __builtin_memcpy(&scale, &u, sizeof scale);
    return sum * scale;
}

/* x^y as C's pow has it. */
static inline __attribute__((noinline, unused)) float power(float x, float y) {
    if (x == 1.0f || y == 0.0f) return 1.0f;
    if (x != x || y != y) return x + y;
    const float a = kf::abs(x), b = kf::abs(y);
    const bool whole = b >= 0x1p23f || static_cast<float>(static_cast<int32_t>(b)) == b;
    const bool odd = whole && b < 0x1p24f && (static_cast<int32_t>(b) & 1);
    float r;
    if (b == kInfinity)
        r = a == 1.0f ? 1.0f : (a < 1.0f) == (y < 0.0f) ? kInfinity : 0.0f;
    else if (a == 0.0f || a == kInfinity)
        r = (a == 0.0f) == (y < 0.0f) ? kInfinity : 0.0f;
    else if (x < 0.0f && !whole)
        return __builtin_nanf("");
    else {
        const double z = static_cast<double>(y) * log(static_cast<double>(a));
        r = z > 100.0 ? kInfinity : z < -110.0 ? 0.0f : static_cast<float>(exp(z));
    }
    return odd && (bits(x) >> 31) ? -r : r;
}

}  // namespace detail

template <int W> struct Vector : Simd<W> {
    typedef Simd<W> S;
    typedef typename S::F F;
    typedef typename S::I I;
    using S::splat;

    KF_MEMBER F exp(F x) {
#if defined(__AVX512F__)
        if constexpr (W == 16) return (F)kf::exp((__m512)x);
#endif
#if defined(__AVX2__) && defined(__FMA__)
        if constexpr (W == 8) return (F)kf::exp((__m256)x);
#endif
        F r;
        for (int i = 0; i < W; ++i) r[i] = kf::exp(x[i]);
        return r;
    }

    /* x = m 2^n with m in [sqrt(1/2), sqrt(2)); log m = f - (f^2/2 - s (f^2/2 + t)) with f = m - 1, s = f / (2 + f), where
     * t is the series of 2 atanh(s) / s - 2 in s^2 <= 0.0295; what four terms leave out is below 1e-8. */
    KF_MEMBER F log(F x) {
        const I small = x < splat(0x1p-126f);
        const I u = S::bits(S::select(small, x * splat(0x1p23f), x)) - 0x3f3504f3;
        const F n = S::number(u >> 23) - S::select(small, splat(23.0f), splat(0.0f));
        const F f = S::from_bits((u & 0x7fffff) + 0x3f3504f3) - splat(1.0f);
        const F s = f / (f + splat(2.0f)), z = s * s, h = splat(0.5f) * f * f;
        F t = S::fma(splat(2.0f / 9), z, splat(2.0f / 7));
        t = S::fma(t, z, splat(2.0f / 5));
        t = S::fma(t, z, splat(2.0f / 3)) * z;
        const F low = S::fma(s, h + t, n * splat(detail::kLn2Low));
        F r = S::fma(n, splat(detail::kLn2High), f - (h - low));
        r = S::select(x == splat(detail::kInfinity), x, r);
        r = S::select(x == splat(0.0f), splat(-detail::kInfinity), r);
        return S::select((x < splat(0.0f)) | (x != x), splat(__builtin_nanf("")), r);
    }

    /* E / (E + 2) with E = e^(2 |x|) - 1 = 2^n (e^r - 1) + (2^n - 1), which loses nothing near zero. */
    KF_MEMBER F tanh(F x) {
        using namespace detail;
        const F twice = S::abs(x) * splat(2.0f), t = S::select(twice > splat(20.0f), splat(20.0f), twice);
        const F magic = splat(kMagic), m = S::fma(t, splat(kLog2e), magic), n = m - magic;
        const F r = S::fma(-n, splat(kLn2Low), S::fma(-n, splat(kLn2High), t));
        F q = S::fma(splat(kQ4), r, splat(kQ3));
        q = S::fma(q, r, splat(kQ2));
        q = S::fma(q, r, splat(kQ1));
        q = S::fma(q, r, splat(kQ0));
        const F s = S::from_bits((S::bits(m) - S::bits(magic) + 127) << 23);
        const F e = S::fma(s, S::fma(q * r, r, r), s - splat(1.0f));
        return S::with_sign(e / (e + splat(2.0f)), x);
    }

    /* 1 / (1 + e^-x), from e^-|x| so that nothing overflows. */
    KF_MEMBER F sigmoid(F x) {
        const F e = exp(-S::abs(x));
        return S::select(x < splat(0.0f), e, splat(1.0f)) / (splat(1.0f) + e);
    }

    KF_MEMBER F erf(F x) {
        using namespace detail;
        const F a = S::abs(x), z = x * x;
        const F b = S::select(a > splat(4.0f), splat(4.0f), a);
        F near = splat(kErfNear[0]), far = splat(kErfFar[0]);
        for (unsigned i = 1; i < sizeof kErfNear / sizeof *kErfNear; ++i) near = S::fma(near, z, splat(kErfNear[i]));
        for (unsigned i = 1; i < sizeof kErfFar / sizeof *kErfFar; ++i) far = S::fma(far, b, splat(kErfFar[i]));
        return S::select(a < splat(1.0f), x * near, S::with_sign(splat(1.0f) - exp(-far), x));
    }

    KF_MEMBER F sin(F x) { return sine(x, 0); }
    KF_MEMBER F cos(F x) { return sine(x, 1); }

    KF_MEMBER F pow(F x, F y) {
        F r;
        for (int i = 0; i < W; ++i) r[i] = detail::power(x[i], y[i]);
        return r;
    }

  private:
    /* sin(x + ahead pi/2). x = q pi/2 + r: pi/2 in three floats, of which the first step is exact below 2^13, and lane by
     * lane beyond. Then the Taylor series to r^9 and r^10 on |r| <= pi/4. */
    KF_MEMBER F sine(F x, int32_t ahead) {
        const F magic = splat(detail::kMagic), m = S::fma(x, splat(0x1.45f306p-1f), magic), n = m - magic;
        F r = S::fma(-n, splat(0x1.921fb6p+0f), x);
        r = S::fma(-n, splat(-0x1.777a5cp-25f), r);
        r = S::fma(-n, splat(-0x1.ee59dap-50f), r);
        I q = S::bits(m) - S::bits(magic);
        const I far = ~(I)(S::abs(x) <= splat(8192.0f));
        if (__builtin_expect(S::any(far), 0)) {
            for (int i = 0; i < W; ++i) {
                if (!far[i]) continue;
                const float v = x[i];
                if (kf::abs(v) < detail::kInfinity) {
                    const detail::Reduced whole = detail::reduce_far(v);
                    r[i] = whole.r, q[i] = whole.q;
                } else {
                    r[i] = v - v;
                }
            }
        }
        q += ahead;
        const F z = r * r;
        F s = S::fma(splat(1.0f / 362880), z, splat(-1.0f / 5040));
        s = S::fma(s, z, splat(1.0f / 120));
        s = S::fma(s, z, splat(-1.0f / 6));
        s = S::fma(s * z, r, r);
        F c = S::fma(splat(-1.0f / 3628800), z, splat(1.0f / 40320));
        c = S::fma(c, z, splat(-1.0f / 720));
        c = S::fma(c, z, splat(1.0f / 24));
        c = S::fma(c * z, z, S::fma(splat(-0.5f), z, splat(1.0f)));
        const F y = S::select((q & 1) == 0, s, c);
        return S::from_bits(S::bits(y) ^ ((q & 2) << 30));
    }
};

}  // namespace kf

#endif
