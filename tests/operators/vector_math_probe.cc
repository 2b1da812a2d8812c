// Arrays through the functions of kforge/vector_math.h, for test_vector_math.py. WIDTH: lanes of a vector.
#include "kforge/vector_math.h"

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef kf::Vector<W> V;

extern "C" int lanes() { return W; }

// n is a multiple of W.
#define UNARY(name)                                                                                       \
    extern "C" void name##_of(const float *in, float *out, int64_t n) {                                   \
        for (int64_t i = 0; i < n; i += W) V::store(out + i, V::name(V::load(in + i)));                   \
    }
UNARY(exp)
UNARY(log)
UNARY(tanh)
UNARY(sigmoid)
UNARY(erf)
UNARY(sin)
UNARY(cos)
UNARY(sqrt)

// Pairs.
#define BINARY(name)                                                                                      \
    extern "C" void name##_of(const float *in, float *out, int64_t n) {                                   \
        for (int64_t i = 0; i < n; i += W) V::store(out + i, V::name(V::load(in + i), V::load(in + n + i))); \
    }
BINARY(pow)
BINARY(maximum)
BINARY(minimum)

extern "C" void transpose_of(const float *in, float *out, int64_t) {
    V::F row[W];
    for (int i = 0; i < W; ++i) row[i] = V::load(in + i * W);
    V::transpose(row);
    for (int i = 0; i < W; ++i) V::store(out + i * W, row[i]);
}

// For every count of lanes: the first ones of `in` moved by load_first, store_first and the forms for what lies apart.
extern "C" void parts_of(const float *in, float *out, int64_t) {
    for (int n = 0; n <= W; ++n, in += W, out += 4 * W) {
        V::store_first(out, n, V::load(in));
        V::store(out + W, V::load_first(in, n));
        if (n > 0) V::store_apart(out + 2 * W, 2, (n + 1) / 2, V::load_apart(in, 2, (n + 1) / 2));
        V::store(out + 3 * W, V::select(V::first(n), V::load(in), V::splat(-1.0f)));
    }
}

extern "C" void across_of(const float *in, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += W, out += 3) {
        out[0] = V::sum(V::load(in + i));
        out[1] = V::largest(V::load(in + i));
        out[2] = V::smallest(V::load(in + i));
    }
}
