// In front of every OpenCL candidate. Products and sums are not fused unless a kernel says fma, and exp is kforge's own: the same
// steps as kf::exp of kforge/math.h, so that results are the same bits as on every other backend.
#pragma OPENCL FP_CONTRACT OFF

// e^x; 0 below -103.97, inf above 88.73, NaN stays NaN. See kforge/math.h for the method and the coefficients' source.
#define KF_EXP(NAME, FLOAT, INT, UINT, AS_INT, AS_UINT, AS_FLOAT)                                                              \
    FLOAT NAME(FLOAT x) {                                                                                                      \
        x = -104.0f > x ? (FLOAT)(-104.0f) : x;                                                                                \
        x = 89.0f < x ? (FLOAT)(89.0f) : x;                                                                                    \
        const FLOAT t = fma(x, (FLOAT)(0x1.715476p+0f), (FLOAT)(0x1.8p23f)), n = t - 0x1.8p23f;                                \
        const FLOAT r = fma(-n, (FLOAT)(-0x1.05c610p-29f), fma(-n, (FLOAT)(0x1.62e430p-1f), x));                               \
        FLOAT q = fma((FLOAT)(0x1.6a4f46p-10f), r, (FLOAT)(0x1.12397cp-7f));                                                   \
        q = fma(q, r, (FLOAT)(0x1.5558aep-5f));                                                                                \
        q = fma(q, r, (FLOAT)(0x1.555492p-3f));                                                                                \
        q = fma(q, r, (FLOAT)(0x1.fffffcp-2f));                                                                                \
        const FLOAT y = fma(fma(q, r, (FLOAT)(1.0f)), r, (FLOAT)(1.0f));                                                       \
        const INT i = AS_INT(AS_UINT(t) - 0x4B400000u), half_ = i >> 1;                                                        \
        const FLOAT s = AS_FLOAT(AS_UINT(half_ + 127) << 23);                                                                  \
        return (y * s) * AS_FLOAT(AS_UINT(i - half_ + 127) << 23);                                                             \
    }
KF_EXP(kf_exp, float, int, uint, as_int, as_uint, as_float)
KF_EXP(kf_exp16, float16, int16, uint16, as_int16, as_uint16, as_float16)

float kf_silu(float x) { return x / (1.0f + kf_exp(-x)); }

// The tree over 16 lanes: l and l+8, then +4, +2, +1.
float kf_tree_sum(float16 lanes) {
    const float8 a = lanes.lo + lanes.hi;
    const float4 b = a.lo + a.hi;
    const float2 c = b.lo + b.hi;
    return c.x + c.y;
}

// The scale of a group of int8 activations, and what they are multiplied by; see kf::a8_scale and kf::a8_inverse.
float kf_a8_scale(float amax) { return amax / 127.0f + (amax - amax); }
float kf_a8_inverse(float amax) { return amax >= 1e-30f ? 127.0f / amax : 0.0f; }
