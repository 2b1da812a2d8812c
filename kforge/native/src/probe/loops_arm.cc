// AArch64: the dot products are written as instructions, so that every compiler builds them for any baseline.
#include "loops.h"

namespace kforge::probe {

#if defined(__aarch64__)

namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

#define ARM_STEP(EXTENSION, INSTRUCTION) \
  asm volatile(".arch_extension " EXTENSION "\n\t" INSTRUCTION : "+w"(c) : "w"(a), "w"(b))

KF_LOOP(fp32_asimd, , "w", Float4, Float4, (Float4{} + .5f), (Float4{} + .5f),
        asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b)))
KF_LOOP(bf16_bfdot, , "w", Float4, Int4, (Int4{} + 0x3F003F00),
        (Int4{} + 0x3F003F00), ARM_STEP("bf16", "bfdot %0.4s, %1.8h, %2.8h"))
KF_LOOP(int8_sdot, , "w", Int4, Int4, (Int4{} + 0x03030303),
        (Int4{} + 0x05050505), ARM_STEP("dotprod", "sdot %0.4s, %1.16b, %2.16b"))

const Loop kLoops[] = {
    {"fp32_fma/asimd", 12 * 4 * 2, fp32_asimd},
    {"bf16_dot/bf16", 12 * 8 * 2, bf16_bfdot},
    {"int8_dot/asimddp", 12 * 16 * 2, int8_sdot},
};

}  // namespace

Tables arm_tables() { return {kLoops, std::size(kLoops), nullptr, 0}; }

#else

Tables arm_tables() { return {nullptr, 0, nullptr, 0}; }

#endif

}  // namespace kforge::probe
