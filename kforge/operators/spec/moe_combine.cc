// Order specification of `moe_combine`.
#include "kforge/math.h"

// Row t * top + j of x is what the j-th expert of token t gave.
extern "C" void kf_spec_moe_combine(int64_t T, int64_t top, int64_t H, const float *x, const float *weights, float *out) {
    for (int64_t t = 0; t < T; ++t)
        for (int64_t h = 0; h < H; ++h) {
            float sum = weights[t * top] * x[t * top * H + h];
            for (int64_t j = 1; j < top; ++j) sum = kf::fma(weights[t * top + j], x[(t * top + j) * H + h], sum);
            out[t * H + h] = out[t * H + h] + sum;
        }
}
