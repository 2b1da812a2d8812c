// The engine's side of a command: store, wake, sleep. In C because the same in Python costs tens of microseconds.
#include "futex.h"
#include "page.h"

#include "team.h"
#include "wait.h"

#include <algorithm>
#include <cerrno>

#include <sys/wait.h>

using kforge_engine::Page;

namespace {

constexpr int64_t look_ns = 1000000000;

// Whether this process's child has ended. Its status is left for whoever asks for it later.
bool ended(pid_t child) {
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0) return errno == ECHILD;
    return info.si_pid == child;
}

// 0 when `word` became `wanted`, 1 when the executor died, 2 when time ran out. The warden tells of the executor's death, and
// takes it along when it is killed itself; nobody tells of that, so it is looked after.
int32_t wait_for(Page *page, std::atomic<uint32_t> &word, uint32_t wanted, int32_t warden, int64_t timeout_ns) {
    const int64_t start = kforge::now_ns();
    int64_t looked = start;
    bool alone = false;
    for (;;) {
        const uint32_t value = word.load(std::memory_order_acquire);
        if (value == wanted) return 0;
        if (alone || page->state.load() == kforge_engine::dead) return 1;
        const int64_t now = kforge::now_ns();
        const int64_t left = timeout_ns - (now - start);
        if (left <= 0) return 2;
        if (now - looked >= look_ns) {
            looked = now;
            alone = ended(warden);
            continue;  // it may have been done just before
        }
        const int64_t sleep = std::min(left, look_ns);
        const timespec wait{sleep / 1000000000, sleep % 1000000000};
        kforge_harness::futex_wait(&word, value, &wait);
    }
}

}  // namespace

extern "C" int32_t kf_isolated_start(Page *page, int32_t warden, int64_t timeout_ns) {
    return wait_for(page, page->state, kforge_engine::ready, warden, timeout_ns);
}

// Runs the command `number`, which differs from the last one, on `program`. This thread sleeps meanwhile on the core of the
// executor's first thread: the two take turns, so that neither has to wake another core.
extern "C" int32_t kf_isolated_call(Page *page, uint32_t number, int32_t command, int32_t program, int32_t core,
                                    int32_t warden, int64_t timeout_ns) {
    const kforge::PinnedScope pinned(core);
    page->command = command;
    page->program = program;
    page->posted.store(number, std::memory_order_release);
    kforge_harness::futex_wake(&page->posted);
    return wait_for(page, page->done, number, warden, timeout_ns);
}
