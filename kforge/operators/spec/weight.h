// Sixteen rows of a packed weight, taken out with the scalar accessors of kforge/panel.h.
#ifndef KFORGE_SPEC_WEIGHT_H
#define KFORGE_SPEC_WEIGHT_H

#include <vector>

#include "kforge/panel.h"

namespace kf {
namespace spec {

constexpr int kLanes = 16;

// Lane l is weight row first + l; lanes beyond the last row hold zeros.
struct Tile {
    std::vector<float> value;    // [K][16]; for f32 activations
    std::vector<int32_t> code;   // [K][16], u - offset; for integer activations
    std::vector<float> d, m;     // [K / 16][16]; for integer activations
};

template <panel::Format F, int ROWS>
void take(const uint8_t *w, int64_t N, int64_t K, bool gate_up, int64_t first, int64_t last, bool integers, Tile *tile) {
    tile->value.assign(integers ? 0 : K * kLanes, 0.0f);
    tile->code.assign(integers ? K * kLanes : 0, 0);
    tile->d.assign(integers ? K / 16 * kLanes : 0, 0.0f);
    tile->m = tile->d;
    for (int64_t n = first; n < last; ++n) {
        const int64_t p = panel::packed_row(n, N, gate_up), lane = n - first;
        if (!integers) {
            for (int64_t k = 0; k < K; ++k) tile->value[k * kLanes + lane] = panel::value<F, ROWS>(w, K, p, k);
            continue;
        }
        for (int64_t k = 0; k < K; ++k)
            tile->code[k * kLanes + lane] = panel::code<F, ROWS>(w, K, p, k) - panel::offset(F);
        for (int64_t k = 0; k < K; k += 16) {
            const panel::Scale s = panel::scale<F, ROWS>(w, K, p, k);
            tile->d[k / 16 * kLanes + lane] = s.d;
            tile->m[k / 16 * kLanes + lane] = s.m;
        }
    }
}

using Take = void (*)(const uint8_t *, int64_t, int64_t, bool, int64_t, int64_t, bool, Tile *);

template <panel::Format F>
Take take_of(int64_t rows) {
    return rows == 16 ? take<F, 16> : rows == 32 ? take<F, 32> : take<F, 64>;
}

inline Take take_of(panel::Format format, int64_t rows) {
    using panel::Format;
    switch (format) {
        case Format::f32: return take_of<Format::f32>(rows);
        case Format::f16: return take_of<Format::f16>(rows);
        case Format::bf16: return take_of<Format::bf16>(rows);
        case Format::q8_0: return take_of<Format::q8_0>(rows);
        case Format::q4_0: return take_of<Format::q4_0>(rows);
        case Format::q4_1: return take_of<Format::q4_1>(rows);
        case Format::q4_k: return take_of<Format::q4_k>(rows);
        case Format::q5_k: return take_of<Format::q5_k>(rows);
        case Format::q6_k: return take_of<Format::q6_k>(rows);
        case Format::mxfp4: return take_of<Format::mxfp4>(rows);
        default: return take_of<Format::int8_channel>(rows);
    }
}

}  // namespace spec
}  // namespace kf

#endif
