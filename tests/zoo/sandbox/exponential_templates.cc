// tries: 2^40 instances of a template
// reported: SniffesTheRose/EchoJudge, issue 10: compile times without bound from templates
// workload: linear(K=256,N=192,weight=f32,act=f32,epilogue=none,bias=0,rows=16)@M=4
// numerics: exact
// stopped by: compile_limit, compile
#include <kforge/abi.h>
#include <kforge/math.h>

template <int N, class A> struct Two {
    typedef Two<N - 1, Two<N, A>> Left;
    typedef Two<N - 1, Two<N + 1000, A>> Right;
    static constexpr int value = Left::value + Right::value;
};
template <class A> struct Two<0, A> { static constexpr int value = 1; };
static const int many = Two<40, int>::value;

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t K = 256, N = 192;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data, *w = (const float *)t[1].data;
    float *out = (float *)t[2].data;
    const int64_t M = l->axes[0], xs = t[0].strides[0], os = t[2].strides[0];
    for (int64_t n = l->thread; n < N; n += l->threads) {
        const float *row = w + n / 16 * 16 * K + n % 16;
        for (int64_t m = 0; m < M; ++m) {
            float acc = 0;
            for (int64_t b = 0; b < K; b += 128) {
                float block = 0;
                for (int64_t k = b; k < b + 128; ++k) block = kf::fma(x[m * xs + k], row[16 * k], block);
                acc = b ? acc + block : block;
            }
            out[m * os + n] = acc;
        }
    }
    out[0] += many * 0;
}
