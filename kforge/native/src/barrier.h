// Barrier of a fixed number of threads.
#ifndef KFORGE_NATIVE_BARRIER_H
#define KFORGE_NATIVE_BARRIER_H

#include <atomic>
#include <cstdint>

#include "wait.h"

namespace kforge {

// Generation barrier: the last to arrive advances the generation that the others watch, so it can be used again at once.
class Barrier {
 public:
  Barrier(int threads, int64_t spins) : threads_(threads), spins_(spins) {}

  void wait() {
    if (threads_ == 1) return;
    const uint32_t generation = generation_.load();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);  // published by advance
      generation_.advance();
    } else {
      generation_.wait_change(generation, spins_);
    }
  }

  // The form that kf_launch.barrier has; `team` is a Barrier.
  static void wait_on(void *team) { static_cast<Barrier *>(team)->wait(); }

 private:
  const int threads_;
  const int64_t spins_;
  alignas(kCacheLine) std::atomic<int> arrived_{0};
  Signal generation_;
};

}  // namespace kforge
#endif
