#include "wait.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kforge {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

int64_t relax_count(int64_t nanoseconds) {
  static const double cost = [] {
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {  // the fastest round was not interrupted
      const int64_t start = now_ns();
      for (int i = 0; i < 200; ++i) cpu_relax();
      const double each = static_cast<double>(now_ns() - start) / 200;
      if (each < best) best = each;
    }
    return best < 0.5 ? 0.5 : best;
  }();
  return static_cast<int64_t>(static_cast<double>(nanoseconds) / cost);
}

void Signal::wake() {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Signal::sleep_until_change(uint32_t seen) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == seen) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace kforge
