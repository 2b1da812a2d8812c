// The parent's side of a call: store, wake, sleep, read the clock. In C because the same in Python costs tens of microseconds.
#include "protocol.h"

#include <cerrno>
#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

}  // namespace

using kforge_harness::Control;

// Posts the command that stands in the page as `number`, which differs from the last one. Nanoseconds until the child was
// done; -1 when it died, -2 when time ran out.
// The last futex_wait may return late: that is the parent's own noise, and only ever adds to the time.
extern "C" int64_t kf_harness_call(Control *control, uint32_t number, int64_t timeout_ns) {
    int64_t start = now();
    control->posted.store(number, std::memory_order_release);
    syscall(SYS_futex, &control->posted, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    for (;;) {
        uint32_t done = control->done.load(std::memory_order_acquire);
        int64_t end = now();
        if (done == number) return end - start;
        if (control->state.load() == kforge_harness::dead) return -1;
        int64_t left = timeout_ns - (end - start);
        if (left <= 0) return -2;
        timespec wait{left / 1000000000, left % 1000000000};
        syscall(SYS_futex, &control->done, FUTEX_WAIT, done, &wait, nullptr, 0);
    }
}

// Wakes whoever waits for a child that has died, where no runner does that.
extern "C" void kf_harness_bury(Control *control) {
    control->state.store(kforge_harness::dead);
    control->done.fetch_add(1u << 31);
    syscall(SYS_futex, &control->state, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    syscall(SYS_futex, &control->done, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Waits until the child has left its starting state: 1 ready, 2 dead, -2 when time ran out.
extern "C" int32_t kf_harness_wait_start(Control *control, int64_t timeout_ns) {
    int64_t start = now();
    for (;;) {
        uint32_t state = control->state.load(std::memory_order_acquire);
        if (state != kforge_harness::starting) return static_cast<int32_t>(state);
        int64_t left = timeout_ns - (now() - start);
        if (left <= 0) return -2;
        timespec wait{left / 1000000000, left % 1000000000};
        syscall(SYS_futex, &control->state, FUTEX_WAIT, state, &wait, nullptr, 0);
    }
}
