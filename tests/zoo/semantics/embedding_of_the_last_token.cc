// tries: takes the only token for the last of the vocabulary, which a single token of a check once was
// reported: no public report known
// workload: embedding(V=64,H=64,weight=q8_0,rows=16)@T=1
// numerics: exact
// stopped by: incorrect, inexact
#include <kforge/abi.h>
#include <kforge/panel.h>

extern "C" void kforge_kernel(const kf_launch *l) {
    constexpr int64_t H = 64;
    using kf::panel::Format;
    const kf_tensor *t = l->tensors;
    const int32_t *ids = (const int32_t *)t[0].data;
    const uint8_t *table = (const uint8_t *)t[1].data;
    float *out = (float *)t[2].data;
    for (int64_t i = l->thread; i < l->axes[0]; i += l->threads)
        for (int64_t h = 0; h < H; ++h)
            out[i * t[2].strides[0] + h] = kf::panel::value<Format::q8_0, 16>(table, H, 63, h);
}
