// kf::panel::value of every weight of a packed matrix, for test_layouts.py.
#include "kforge/panel.h"

using kf::panel::Format;

template <Format F, int ROWS>
static int64_t run(const uint8_t *data, int64_t N, int64_t K, bool gate_up, float *out) {
    for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k)
            out[n * K + k] = kf::panel::value<F, ROWS>(data, K, kf::panel::packed_row(n, N, gate_up), k);
    return kf::panel::Panel<F, ROWS>::panels(kf::panel::packed_rows(N, gate_up)) * kf::panel::Panel<F, ROWS>::bytes(K);
}

#define PANEL(format)                                                                                            \
    extern "C" int64_t values_##format(const uint8_t *data, int64_t N, int64_t K, int64_t rows, int64_t gate_up, \
                                       float *out) {                                                             \
        if (rows == 16) return run<Format::format, 16>(data, N, K, gate_up, out);                                \
        if (rows == 32) return run<Format::format, 32>(data, N, K, gate_up, out);                                \
        return run<Format::format, 64>(data, N, K, gate_up, out);                                                \
    }

PANEL(f32)
PANEL(f16)
PANEL(bf16)
PANEL(q8_0)
PANEL(q4_0)
PANEL(q4_1)
PANEL(q4_k)
PANEL(q5_k)
PANEL(q6_k)
PANEL(mxfp4)
PANEL(int8_channel)
