// Loops that run one kind of instruction, or read memory, as fast as the core can.
#ifndef KFORGE_NATIVE_PROBE_LOOPS_H
#define KFORGE_NATIVE_PROBE_LOOPS_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace kforge::probe {

// Arithmetic: `run` repeats `operations` operations (a multiply-add is two) that many times.
struct Loop {
  const char *name;  // "peak/feature"
  double operations;
  void (*run)(int64_t repetitions);
};

// Reads bytes (a multiple of 256) once, in order.
struct Reader {
  const char *name;  // "read/feature"
  void (*run)(const uint8_t *data, std::size_t bytes);
};

struct Tables {
  const Loop *loops;
  std::size_t loop_count;
  const Reader *readers;
  std::size_t reader_count;
};

// What this architecture's compiler could build; the caller picks what the CPU at hand can execute.
Tables portable_tables();
Tables x86_tables();
Tables arm_tables();

}  // namespace kforge::probe

// Twelve independent chains: more than latency x throughput of any current core asks for (Zen 4 and Sapphire Rapids: 8),
// few enough for 16 registers with two operands and a temporary.

// Makes the compiler forget what it knows of a register, so that it can neither hoist nor merge the steps.
#define KF_FORGET(REGISTER, V) asm volatile("" : "+" REGISTER(V));

// A function of twelve accumulators C of type ACC, each step being the expression STEP over c and the operands a and b.
#define KF_LOOP(NAME, TARGET, REGISTER, ACC, OPERAND, INIT_A, INIT_B, STEP)          \
  TARGET void NAME(int64_t repetitions) {                                            \
    OPERAND a = INIT_A, b = INIT_B;                                                  \
    ACC c0{}, c1{}, c2{}, c3{}, c4{}, c5{}, c6{}, c7{}, c8{}, c9{}, c10{}, c11{};    \
    for (int64_t i = 0; i < repetitions; ++i) {                                      \
      KF_STEP(c0, STEP, REGISTER) KF_STEP(c1, STEP, REGISTER)                        \
      KF_STEP(c2, STEP, REGISTER) KF_STEP(c3, STEP, REGISTER)                        \
      KF_STEP(c4, STEP, REGISTER) KF_STEP(c5, STEP, REGISTER)                        \
      KF_STEP(c6, STEP, REGISTER) KF_STEP(c7, STEP, REGISTER)                        \
      KF_STEP(c8, STEP, REGISTER) KF_STEP(c9, STEP, REGISTER)                        \
      KF_STEP(c10, STEP, REGISTER) KF_STEP(c11, STEP, REGISTER)                      \
    }                                                                                \
    KF_FORGET(REGISTER, c0) KF_FORGET(REGISTER, c1) KF_FORGET(REGISTER, c2)          \
    KF_FORGET(REGISTER, c3) KF_FORGET(REGISTER, c4) KF_FORGET(REGISTER, c5)          \
    KF_FORGET(REGISTER, c6) KF_FORGET(REGISTER, c7) KF_FORGET(REGISTER, c8)          \
    KF_FORGET(REGISTER, c9) KF_FORGET(REGISTER, c10) KF_FORGET(REGISTER, c11)        \
  }
#define KF_STEP(C, STEP, REGISTER) \
  {                                \
    KF_FORGET(REGISTER, a)         \
    auto &c = C;                   \
    STEP;                          \
  }

// A reader of 4 vectors of type V an iteration, as one sequential stream. Eight 64-byte loads an iteration reach only 0.6
// of what four 32-byte loads do on Zen 4: many misses far ahead in one stream disturb its prefetcher.
#define KF_READER(NAME, TARGET, REGISTER, V)                            \
  TARGET void NAME(const uint8_t *data, std::size_t bytes) {            \
    V c0{}, c1{}, c2{}, c3{}, v;                                        \
    for (std::size_t i = 0; i < bytes; i += 4 * sizeof(V)) {            \
      const uint8_t *at = data + i;                                     \
      KF_READ(c0, 0) KF_READ(c1, 1) KF_READ(c2, 2) KF_READ(c3, 3)       \
    }                                                                   \
    KF_FORGET(REGISTER, c0) KF_FORGET(REGISTER, c1)                     \
    KF_FORGET(REGISTER, c2) KF_FORGET(REGISTER, c3)                     \
  }
#define KF_READ(C, J)                                 \
  std::memcpy(&v, at + (J) * sizeof(v), sizeof(v)); \
  C |= v;

#endif
