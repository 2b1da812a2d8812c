// Waiting for another thread: spin first, because the wait is usually shorter than a system call, then sleep on a futex.
#ifndef KFORGE_NATIVE_WAIT_H
#define KFORGE_NATIVE_WAIT_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kforge {

constexpr std::size_t kCacheLine = 128;  // two lines: adjacent-line prefetch makes pairs of 64 bytes travel together

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// cpu_relax() calls that take about `nanoseconds` here. The instruction's length differs by 10x between CPUs, so it is
// measured once per process; the hot loop then needs no clock (which may be a system call, and the sandbox forbids those).
int64_t relax_count(int64_t nanoseconds);

// Monotonic clock in nanoseconds.
int64_t now_ns();

// A 32-bit word that threads wait to see change. Changes must be published with `advance`.
class alignas(kCacheLine) Signal {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  // Next value, waking whoever sleeps. One writer at a time.
  void advance() {
    // Sequentially consistent on both sides: either the sleeper sees the new value or we see the sleeper.
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
  }

  // Returns when the value is no longer `seen`. Stops spinning early when `hurry` becomes true.
  void wait_change(uint32_t seen, int64_t spins, const std::atomic<bool> *hurry = nullptr) {
    for (int64_t i = 0; i < spins; ++i) {
      if (load() != seen) return;
      if (hurry != nullptr && hurry->load(std::memory_order_relaxed)) break;
      cpu_relax();
    }
    if (load() != seen) return;
    sleep_until_change(seen);
  }

  uint32_t sleepers() const { return sleepers_.load(std::memory_order_seq_cst); }

 private:
  void wake();
  void sleep_until_change(uint32_t seen);

  std::atomic<uint32_t> value_{0};
  alignas(kCacheLine) std::atomic<uint32_t> sleepers_{0};
};

}  // namespace kforge
#endif
