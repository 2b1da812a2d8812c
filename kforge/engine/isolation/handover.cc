// The engine's side of a command: store, wake, sleep. In C because the same in Python costs tens of microseconds.
#include "futex.h"
#include "page.h"

#include "team.h"
#include "wait.h"

using kforge_engine::Page;

namespace {

// 0 when `word` became `wanted`, 1 when the executor died, 2 when time ran out.
int32_t wait_for(Page *page, std::atomic<uint32_t> &word, uint32_t wanted, int64_t timeout_ns) {
    const int64_t start = kforge::now_ns();
    for (;;) {
        const uint32_t value = word.load(std::memory_order_acquire);
        if (value == wanted) return 0;
        if (page->state.load() == kforge_engine::dead) return 1;
        const int64_t left = timeout_ns - (kforge::now_ns() - start);
        if (left <= 0) return 2;
        const timespec wait{left / 1000000000, left % 1000000000};
        kforge_harness::futex_wait(&word, value, &wait);
    }
}

}  // namespace

extern "C" int32_t kf_isolated_start(Page *page, int64_t timeout_ns) {
    return wait_for(page, page->state, kforge_engine::ready, timeout_ns);
}

// Runs the command `number`, which differs from the last one, on `program`. This thread sleeps meanwhile on the core of the
// executor's first thread: the two take turns, so that neither has to wake another core.
extern "C" int32_t kf_isolated_call(Page *page, uint32_t number, int32_t command, int32_t program, int32_t core,
                                    int64_t timeout_ns) {
    const kforge::PinnedScope pinned(core);
    page->command = command;
    page->program = program;
    page->posted.store(number, std::memory_order_release);
    kforge_harness::futex_wake(&page->posted);
    return wait_for(page, page->done, number, timeout_ns);
}
