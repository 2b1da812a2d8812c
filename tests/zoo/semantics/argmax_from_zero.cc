// tries: starts from zero, not from minus infinity: wrong where all logits are negative
// reported: no public report known
// workload: argmax(V=20)@R=40
// numerics: exact
// stopped by: incorrect, inexact
#include <kforge/abi.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t V = 20;
    const kf_tensor *t = l->tensors;
    const float *x = (const float *)t[0].data;
    int32_t *out = (int32_t *)t[1].data;
    for (int64_t r = l->thread; r < l->axes[0]; r += l->threads) {
        const float *row = x + r * t[0].strides[0];
        int32_t best = 0;
        float top = 0;
        for (int32_t v = 0; v < V; ++v)
            if (row[v] > top) top = row[best = v];
        out[r] = best;
    }
}
