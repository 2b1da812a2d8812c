// x86-64: each function is built for the instructions it needs, whatever the compiler's default.
#include "loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kforge::probe {

#if defined(__x86_64__)

namespace {

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX_VNNI __attribute__((target("avx2,avxvnni")))
#define AVX512 __attribute__((target("avx512f")))
#define AVX512_VNNI __attribute__((target("avx512f,avx512vnni")))
#define AVX512_BF16 __attribute__((target("avx512f,avx512bf16")))

typedef uint32_t Bits8 __attribute__((vector_size(32)));
typedef uint32_t Bits16 __attribute__((vector_size(64)));

KF_LOOP(fp32_avx512, AVX512, "v", __m512, __m512, _mm512_set1_ps(.5f), _mm512_set1_ps(.5f),
        c = _mm512_fmadd_ps(a, b, c))
KF_LOOP(fp32_avx2, AVX2, "x", __m256, __m256, _mm256_set1_ps(.5f), _mm256_set1_ps(.5f), c = _mm256_fmadd_ps(a, b, c))

KF_LOOP(bf16_avx512_bf16, AVX512_BF16, "v", __m512, __m512i, _mm512_set1_epi32(0x3F003F00),
        _mm512_set1_epi32(0x3F003F00), c = _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b))
// Without the instruction: bf16 pairs in 32-bit lanes, widened by a shift and by a mask, then float32 FMAs. The activation
// is widened beforehand, as in a kernel.
KF_LOOP(bf16_avx512, AVX512, "v", __m512, Bits16, (Bits16{} + 0x3F003F00), (Bits16{} + 0x3F000000),
        c = _mm512_fmadd_ps((__m512)(a << 16), (__m512)b, c);
        c = _mm512_fmadd_ps((__m512)(a & 0xFFFF0000u), (__m512)b, c))
KF_LOOP(bf16_avx2, AVX2, "x", __m256, Bits8, (Bits8{} + 0x3F003F00), (Bits8{} + 0x3F000000),
        c = _mm256_fmadd_ps((__m256)(a << 16), (__m256)b, c);
        c = _mm256_fmadd_ps((__m256)(a & 0xFFFF0000u), (__m256)b, c))

KF_LOOP(int8_avx512_vnni, AVX512_VNNI, "v", __m512i, __m512i, _mm512_set1_epi8(3), _mm512_set1_epi8(5),
        c = _mm512_dpbusd_epi32(c, a, b))
KF_LOOP(int8_avx_vnni, AVX_VNNI, "x", __m256i, __m256i, _mm256_set1_epi8(3), _mm256_set1_epi8(5),
        c = _mm256_dpbusd_avx_epi32(c, a, b))
KF_LOOP(int8_avx2, AVX2, "x", __m256i, __m256i, _mm256_set1_epi8(3), _mm256_set1_epi8(5),
        c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))))

typedef uint64_t Word4 __attribute__((vector_size(32)));
typedef uint64_t Word8 __attribute__((vector_size(64)));
KF_READER(read_avx512, AVX512, "v", Word8)
KF_READER(read_avx2, AVX2, "x", Word4)

const Loop kLoops[] = {
    {"fp32_fma/avx512f", 12 * 16 * 2, fp32_avx512},
    {"fp32_fma/avx2", 12 * 8 * 2, fp32_avx2},
    {"bf16_dot/avx512_bf16", 12 * 32 * 2, bf16_avx512_bf16},
    {"bf16_dot/avx512f", 12 * 32 * 2, bf16_avx512},
    {"bf16_dot/avx2", 12 * 16 * 2, bf16_avx2},
    {"int8_dot/avx512_vnni", 12 * 64 * 2, int8_avx512_vnni},
    {"int8_dot/avx_vnni", 12 * 32 * 2, int8_avx_vnni},
    {"int8_dot/avx2", 12 * 32 * 2, int8_avx2},
};
const Reader kReaders[] = {{"read/avx512f", read_avx512}, {"read/avx2", read_avx2}};

}  // namespace

Tables x86_tables() { return {kLoops, std::size(kLoops), kReaders, std::size(kReaders)}; }

#else

Tables x86_tables() { return {nullptr, 0, nullptr, 0}; }

#endif

}  // namespace kforge::probe
