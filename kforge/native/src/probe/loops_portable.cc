// What any CPU runs: plain C on 16-byte vectors.
#include "loops.h"

namespace kforge::probe {

namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Bits4 __attribute__((vector_size(16)));
typedef uint64_t Word2 __attribute__((vector_size(16)));

#if defined(__aarch64__)
#define REGISTER "w"
#elif defined(__x86_64__)
#define REGISTER "x"
#else
#define REGISTER "m"
#endif

KF_LOOP(fp32_fma, , REGISTER, Float4, Float4, (Float4{} + .5f), (Float4{} + .5f), c += a * b)

// bf16 pairs in 32-bit lanes, widened to float32.
KF_LOOP(bf16_dot, , REGISTER, Float4, Bits4, (Bits4{} + 0x3F003F00),
        (Bits4{} + 0x3F003F00),
        c += (Float4)(a << 16) * (Float4)(b << 16);
        c += (Float4)(a & 0xFFFF0000u) * (Float4)(b & 0xFFFF0000u))

// Two 8-bit values of each 32-bit lane: shifts and a 32-bit multiply a value.
KF_LOOP(int8_dot, , REGISTER, Int4, Int4, (Int4{} + 0x00070003), (Int4{} + 5),
        c += ((a << 16) >> 16) * b; c += (a >> 16) * b)

KF_READER(read, , REGISTER, Word2)

const Loop kLoops[] = {
    {"fp32_fma/portable", 12 * 4 * 2, fp32_fma},
    {"bf16_dot/portable", 12 * 8 * 2, bf16_dot},
    {"int8_dot/portable", 12 * 8 * 2, int8_dot},
};
const Reader kReaders[] = {{"read/portable", read}};

}  // namespace

Tables portable_tables() { return {kLoops, std::size(kLoops), kReaders, std::size(kReaders)}; }

}  // namespace kforge::probe
