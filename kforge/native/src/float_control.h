// The floating-point control word: rounding, flushing, exceptions.
#ifndef KFORGE_NATIVE_FLOAT_CONTROL_H
#define KFORGE_NATIVE_FLOAT_CONTROL_H

#include <cstdint>

namespace kforge {

struct FloatControl {
  uint64_t value;

  // Round to nearest even, nothing flushed to zero, all exceptions masked, no flag raised: MXCSR 0x1F80, FPCR 0.
  static FloatControl defaults() {
#if defined(__x86_64__)
    return {0x1F80};
#else
    return {0};
#endif
  }

  static FloatControl read() {
#if defined(__x86_64__)
    return {__builtin_ia32_stmxcsr()};
#elif defined(__aarch64__)
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return {value};
#else
    return {0};
#endif
  }

  void write() const {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(static_cast<uint32_t>(value));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(value));
#endif
  }
};

}  // namespace kforge
#endif
