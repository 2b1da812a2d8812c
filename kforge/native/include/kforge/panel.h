/* The weight layout `panel`, version 1 (docs/architecture.md): offsets, strides and a scalar accessor.
 *
 * A panel is ROWS consecutive rows; panels follow one another.  Inside a panel: per 256 k of a K format a header with its
 * super-scales, then per group of 32 k the scales of all rows, then the values in tiles of 16 rows.  All offsets are in
 * bytes, all of them are multiples of 16.
 */
#ifndef KFORGE_PANEL_H
#define KFORGE_PANEL_H

#include "kforge/math.h"

namespace kf {
namespace panel {

enum class Format { f32, f16, bf16, q8_0, q4_0, q4_1, q4_k, q5_k, q6_k, mxfp4, int8_channel };

enum : int { kTileRows = 16, kGroup = 32, kSuper = 256 };

/* As kforge.core.dtypes.FormatTraits: w = d * (u - offset) + m. */
KF_CONSTEXPR int bits(Format f) {
    return f == Format::f32    ? 32
           : f == Format::f16  ? 16
           : f == Format::bf16 ? 16
           : f == Format::q8_0 || f == Format::int8_channel ? 8
           : f == Format::q5_k ? 5
           : f == Format::q6_k ? 6
                               : 4;
}
KF_CONSTEXPR int offset(Format f) {
    return f == Format::q8_0 || f == Format::int8_channel ? 128 : f == Format::q4_0 ? 8 : f == Format::q6_k ? 32 : f == Format::mxfp4 ? 12 : 0;
}
KF_CONSTEXPR bool is_float(Format f) { return bits(f) >= 16; }
KF_CONSTEXPR bool is_k(Format f) { return f == Format::q4_k || f == Format::q5_k || f == Format::q6_k; }
/* Scales are bytes e, and d = 2^(e - 128). */
KF_CONSTEXPR bool e8m0(Format f) { return f == Format::mxfp4; }
/* One float32 scale for all k of a row. */
KF_CONSTEXPR bool row_scale(Format f) { return f == Format::int8_channel; }
KF_CONSTEXPR bool has_min(Format f) { return f == Format::q4_1 || f == Format::q4_k || f == Format::q5_k; }

template <Format F, int ROWS>
struct Panel {
    static_assert(ROWS == 16 || ROWS == 32 || ROWS == 64, "a panel is 16, 32 or 64 rows high");
    enum : int64_t {
        kTiles = ROWS / kTileRows,
        /* Bytes of a tile: 16 rows x 32 k of values. */
        kTileBytes = kTileRows * kGroup * bits(F) / 8,
        /* Bytes of one group's scales, of all rows. */
        kScaleBytes = is_float(F) || row_scale(F) ? 0 : (e8m0(F) ? 1 : is_k(F) || !has_min(F) ? 2 : 4) * ROWS,
        /* Bytes of the header in front of 256 k: d f16[ROWS], dmin f16[ROWS] if the format has a minimum. With row scales of
         * the one in front of the panel: d f32[ROWS]. */
        kHeaderBytes = is_k(F) ? (has_min(F) ? 4 : 2) * ROWS : row_scale(F) ? 4 * ROWS : 0,
        /* From one group of 32 k to the next inside the same 256 k. */
        kGroupBytes = kScaleBytes + kTiles * kTileBytes,
        /* From one 256 k to the next (K formats). */
        kSuperBytes = kHeaderBytes + kSuper / kGroup * kGroupBytes,
    };

    static KF_CONSTEXPR int64_t groups(int64_t K) { return (K + kGroup - 1) / kGroup; }
    static KF_CONSTEXPR int64_t panels(int64_t packed_rows) { return (packed_rows + ROWS - 1) / ROWS; }
    /* From one panel to the next. */
    static KF_CONSTEXPR int64_t bytes(int64_t K) { return is_k(F) ? K / kSuper * kSuperBytes : kHeaderBytes + groups(K) * kGroupBytes; }

    /* Offsets inside a panel. */
    static KF_CONSTEXPR int64_t header(int64_t g) { return g / (kSuper / kGroup) * kSuperBytes; }
    static KF_CONSTEXPR int64_t scales(int64_t g) {
        return is_k(F) ? header(g) + kHeaderBytes + g % (kSuper / kGroup) * kGroupBytes : kHeaderBytes + g * kGroupBytes;
    }
    static KF_CONSTEXPR int64_t tile(int64_t g, int t) { return scales(g) + kScaleBytes + t * kTileBytes; }
};

/* The packed row of row n: with gate_up, 16 gate rows alternate with the 16 up rows of the same outputs. */
KF_CONSTEXPR int64_t packed_row(int64_t n, int64_t N, bool gate_up) {
    if (!gate_up) return n;
    const int64_t half = N / 2, up = n >= half, i = n - up * half;
    return i / kTileRows * 2 * kTileRows + up * kTileRows + i % kTileRows;
}

/* Rows of the packed matrix before padding to ROWS. */
KF_CONSTEXPR int64_t packed_rows(int64_t N, bool gate_up) {
    return gate_up ? (N / 2 + kTileRows - 1) / kTileRows * kTileRows * 2 : N;
}

KF_INLINE uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

/* 2^(e - 128): half of what the byte stands for in the OCP specification, because the integers are twice the 4-bit floats. */
KF_INLINE float e8m0_to_f32(uint8_t e) { return from_bits(e < 2 ? 0x00200000u << e : (e - 1u) << 23); }

/* Twice the 4-bit float (e2m1) that a code stands for, plus the offset of 12. The digits of the constant are twice 0, 0.5, 1, 1.5,
 * 2, 3, 4 and 6; bit 3 of a code is its sign. */
KF_INLINE int32_t e2m1_unsigned(int32_t code) {
    const int32_t twice = 0xc8643210u >> 4 * (code & 7) & 15;
    return code & 8 ? 12 - twice : 12 + twice;
}

/* d and m (+0 without a minimum) of one weight as float32: for K formats d = d * sc and m = -(dmin * mn), both exact. */
struct Scale {
    float d, m;
};

/* Scale of packed row p at k (integer formats). */
template <Format F, int ROWS>
KF_INLINE Scale scale(const uint8_t *data, int64_t K, int64_t p, int64_t k) {
    using P = Panel<F, ROWS>;
    const int64_t g = k / kGroup, r = p % ROWS;
    const uint8_t *base = data + p / ROWS * P::bytes(K);
    const uint8_t *s = base + P::scales(g);
    if (row_scale(F)) {
        float d;
        __builtin_memcpy(&d, base + 4 * r, sizeof d);
        return {d, 0.0f};
    }
    if (e8m0(F)) return {e8m0_to_f32(s[r]), 0.0f};
    if (!is_k(F))
        return {f16_to_f32(load_u16(s + 2 * r)), has_min(F) ? f16_to_f32(load_u16(s + 2 * (ROWS + r))) : 0.0f};
    const uint8_t *h = base + P::header(g);
    const float d = f16_to_f32(load_u16(h + 2 * r));
    if (F == Format::q6_k) return {d * static_cast<float>(static_cast<int8_t>(s[(k % kGroup / 16) * ROWS + r])), 0.0f};
    const float dmin = f16_to_f32(load_u16(h + 2 * (ROWS + r)));
    return {d * static_cast<float>(s[r]), -(dmin * static_cast<float>(s[ROWS + r]))};
}

/* The unsigned integer u of packed row p at k (integer formats): as it is stored, for mxfp4 what the stored code stands for. */
template <Format F, int ROWS>
KF_INLINE int32_t code(const uint8_t *data, int64_t K, int64_t p, int64_t k) {
    using P = Panel<F, ROWS>;
    const int64_t g = k / kGroup, r = p % kTileRows, i = k % 4, half = k % kGroup / 16, j = k % 16 / 4;
    const uint8_t *t = data + p / ROWS * P::bytes(K) + P::tile(g, static_cast<int>(p % ROWS / kTileRows)) + 4 * r + i;
    if (bits(F) == 8) return t[64 * (k % kGroup / 4)];
    const int32_t low = t[64 * j] >> (4 * half) & 15;
    if (F == Format::q5_k) return low | (t[256] >> (4 * half + j) & 1) << 4;
    if (F == Format::q6_k) return low | (t[256 + 64 * half] >> (2 * j) & 3) << 4;
    return F == Format::mxfp4 ? e2m1_unsigned(low) : low;
}

/* The weight of packed row p at k as float32, one rounding (none for formats without a minimum). */
template <Format F, int ROWS>
KF_INLINE float value(const uint8_t *data, int64_t K, int64_t p, int64_t k) {
    using P = Panel<F, ROWS>;
    if (is_float(F)) {
        const int64_t g = k / kGroup, kk = k % kGroup, r = p % kTileRows;
        const uint8_t *t = data + p / ROWS * P::bytes(K) + P::tile(g, static_cast<int>(p % ROWS / kTileRows));
        if (F == Format::bf16) return bf16_to_f32(load_u16(t + 64 * (kk / 2) + 4 * r + 2 * (kk % 2)));
        if (F == Format::f16) return f16_to_f32(load_u16(t + 2 * (16 * kk + r)));
        float v;
        __builtin_memcpy(&v, t + 4 * (16 * kk + r), sizeof v);
        return v;
    }
    const Scale s = scale<F, ROWS>(data, K, p, k);
    return kf::fma(s.d, static_cast<float>(code<F, ROWS>(data, K, p, k) - offset(F)), s.m);
}

}  // namespace panel
}  // namespace kf

#endif
