// Waiting and waking between processes that share a page.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kforge_harness {

inline void futex_wake(std::atomic<uint32_t> *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

// `timeout` null: for ever.
inline void futex_wait(std::atomic<uint32_t> *word, uint32_t value, const timespec *timeout = nullptr) {
    syscall(SYS_futex, word, FUTEX_WAIT, value, timeout, nullptr, 0);
}

}  // namespace kforge_harness
