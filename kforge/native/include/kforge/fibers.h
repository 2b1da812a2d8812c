/* The half of device.h that runs on a CPU, to check kernels of GPUs without one: a group's threads are fibers of the thread
 * that runs the group, and switch where a GPU's would meet, at kf::sync and shuffles.  x86-64.
 *
 * Groups are dealt to the team as any native kernel's work is, so that the harness runs it with its cases, poisons, fences and
 * guards.  What is checked beyond that, by a trap (the trial's failure is a crash): a barrier or shuffle that part of a
 * group or warp never reaches, writes outside a group's shared memory, a stack that is too small, and a shuffle from a lane
 * that is not there.  Shared memory begins as NaNs.  Fibers run in the order of their index or, with KF_DESCENDING, the other
 * way round: what needs a barrier that is not there reads what has not been written yet in one of the two.
 */
#ifndef KFORGE_FIBERS_H
#define KFORGE_FIBERS_H

#include "kforge/abi.h"
#include "kforge/freestanding.h"
#include "kforge/math.h"

#ifndef KF_WARP
#define KF_WARP 32
#endif
#ifndef KF_DESCENDING
#define KF_DESCENDING 0
#endif

#define KF_KERNEL(most_threads) static void
#define KF_SHARED(type, name, count) type *const name = static_cast<type *>(kf::fibers::take_shared(sizeof(type) * (count)))

extern "C" {
/* Pushes what a function must keep, stores the stack pointer to *save and goes on where `load` was stored. */
__attribute__((visibility("hidden"))) void kf_fiber_switch(void **save, void *load);
asm(".pushsection .text.kf_fiber_switch,\"ax\",@progbits\n"
    ".hidden kf_fiber_switch\n"
    ".globl kf_fiber_switch\n"
    ".type kf_fiber_switch,@function\n"
    "kf_fiber_switch:\n"
    "pushq %rbx\n pushq %rbp\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbp\n popq %rbx\n"
    "ret\n"
    ".size kf_fiber_switch,.-kf_fiber_switch\n"
    ".popsection\n");
}

namespace kf {
namespace fibers {

constexpr uint64_t kStack = 16 << 10, kMostThreads = 1024, kShared = 48 << 10, kFence = 256;
constexpr uint64_t kCanary = 0x9e3779b97f4a7c15ull;

struct Group;

/* At the lowest address of a fiber's stack, which is aligned to its size: that is how a fiber finds itself. */
struct Fiber {
    void *stack;
    Group *group;
    int32_t index;
    bool done;
    uint64_t shared_taken; /* bytes of shared memory that it has named so far */
    uint64_t canary[8];    /* a stack that grows down to here was too small */
};

/* A meeting of `size` fibers. */
struct Meeting {
    int32_t arrived, count;
};

/* One group at a time for each thread of the team. */
struct Group {
    void *host; /* the stack of the thread that runs the fibers */
    const kf_launch *launch;
    char *base; /* of the first fiber */
    int32_t threads, alive;
    int32_t x, y, z, groups_z;
    bool progress;
    uint64_t shared_used;
    Meeting all, warps[kMostThreads / 32];
    uint32_t exchanged[kMostThreads];
    alignas(64) unsigned char shared[kFence + kShared + kFence];
};

constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Bytes that each thread of the team needs for groups of `threads`, and what all of them together do, alignment included. */
constexpr uint64_t team_bytes(uint64_t threads) { return threads * kStack + round_up(sizeof(Group), kStack); }
constexpr uint64_t scratch_bytes(uint64_t kernel_bytes, uint64_t threads, uint64_t team) {
    return round_up(kernel_bytes, 64) + kFence + kStack + team * team_bytes(threads);
}

KF_INLINE Fiber *self() {
    return reinterpret_cast<Fiber *>(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) & ~(kStack - 1));
}

[[noreturn]] KF_INLINE void fail() { __builtin_trap(); }

KF_INLINE void require(bool holds) {
    if (!holds) fail();
}

KF_INLINE void yield(Fiber *fiber) { kf_fiber_switch(&fiber->stack, fiber->group->host); }

inline __attribute__((noinline)) void meet(Meeting &meeting, int32_t size) {
    Fiber *fiber = self();
    fiber->group->progress = true;
    const int32_t count = meeting.count;
    if (++meeting.arrived == size) {
        meeting.arrived = 0;
        meeting.count = count + 1;
        return;
    }
    do yield(fiber);
    while (*const_cast<volatile int32_t *>(&meeting.count) == count);
}

inline __attribute__((noinline)) void *take_shared(uint64_t bytes) {
    /* Every fiber takes the same memory in the same order; `shared_used` counts for the one that is furthest. */
    Fiber *fiber = self();
    Group *group = fiber->group;
    const uint64_t at = fiber->shared_taken, end = at + round_up(bytes, 16);
    require(end <= kShared);
    fiber->shared_taken = end;
    if (group->shared_used < end) group->shared_used = end;
    return group->shared + kFence + at;
}

/* Bytes that hold the poison of shared memory: all bits set, which is a NaN. */
inline bool poisoned(const unsigned char *p, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i)
        if (p[i] != 0xff) return false;
    return true;
}

/* The end of a fiber: `entry` of a launch calls it when its kernel returns. */
[[noreturn]] inline __attribute__((noinline)) void finish() {
    Fiber *fiber = self();
    fiber->done = true;
    fiber->group->progress = true;
    --fiber->group->alive;
    yield(fiber);
    fail();
}

inline void resume(Group &group, int32_t i) {
    Fiber *fiber = reinterpret_cast<Fiber *>(group.base + i * kStack);
    if (!fiber->done) kf_fiber_switch(&group.host, fiber->stack);
}

inline __attribute__((noinline)) void run_group(Group &group, void (*entry)()) {
    memset(group.shared, 0xff, sizeof group.shared);
    group.alive = group.threads;
    group.all = Meeting{0, 0};
    group.shared_used = 0;
    for (Meeting &warp : group.warps) warp = Meeting{0, 0};
    for (int32_t i = 0; i < group.threads; ++i) {
        Fiber *fiber = reinterpret_cast<Fiber *>(group.base + i * kStack);
        fiber->group = &group;
        fiber->index = i;
        fiber->done = false;
        fiber->shared_taken = 0;
        for (uint64_t &word : fiber->canary) word = kCanary;
        uint64_t *top = reinterpret_cast<uint64_t *>(group.base + (i + 1) * kStack) - 2;
        *top = reinterpret_cast<uint64_t>(entry); /* where the first switch returns to, the stack as after a call */
        for (int r = 1; r <= 6; ++r) top[-r] = 0;
        fiber->stack = top - 6;
    }
    while (group.alive > 0) {
        group.progress = false;
        for (int32_t i = 0; i < group.threads; ++i) resume(group, KF_DESCENDING ? group.threads - 1 - i : i);
        require(group.progress); /* nobody arrived anywhere: some wait for threads that have ended or wait elsewhere */
    }
    require(group.all.arrived == 0);
    require(poisoned(group.shared, kFence) && poisoned(group.shared + kFence + group.shared_used, kFence));
    for (int32_t i = 0; i < group.threads; ++i) {
        const Fiber *fiber = reinterpret_cast<Fiber *>(group.base + i * kStack);
        for (const uint64_t word : fiber->canary) require(word == kCanary);
    }
}

/* This thread's share of a grid. `work`: the team's part of the scratch, `most_threads` of the kernel's largest group. */
inline __attribute__((noinline)) void run(const kf_launch *launch, char *work, int64_t most_threads, int64_t x, int64_t y,
                                          int64_t z, int64_t threads, void (*entry)()) {
    require(threads >= 1 && threads <= static_cast<int64_t>(kMostThreads));
    Group &group = *reinterpret_cast<Group *>(work + launch->thread * team_bytes(most_threads));
    group.base = reinterpret_cast<char *>(&group) + round_up(sizeof(Group), kStack);
    group.launch = launch;
    group.threads = static_cast<int32_t>(threads);
    group.groups_z = static_cast<int32_t>(z);
    const int64_t total = x * y * z, last = total * (launch->thread + 1) / launch->threads;
    for (int64_t i = total * launch->thread / launch->threads; i < last; ++i) {
        group.x = static_cast<int32_t>(i % x);
        group.y = static_cast<int32_t>(i / x % y);
        group.z = static_cast<int32_t>(i / x / y);
        run_group(group, entry);
    }
}

/* An argument of whichever pointer type a kernel declares. */
struct Pointer {
    void *to;
    template <class T>
    operator T *() const {
        return static_cast<T *>(to);
    }
};

/* The launch's sizes, as kforge.core.launch has them: division rounds down. */
KF_INLINE int64_t div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
KF_INLINE int64_t mod(int64_t a, int64_t b) { return a - div(a, b) * b; }
KF_INLINE int64_t cdiv(int64_t a, int64_t b) { return -div(-a, b); }
KF_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
KF_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

/* The team's part of the scratch, behind the kernel's own, which ends in a fence. */
KF_INLINE char *work_of(const kf_launch *launch, int64_t kernel_bytes) {
    const uint64_t at = reinterpret_cast<uintptr_t>(launch->scratch) + round_up(kernel_bytes, 64) + kFence;
    return reinterpret_cast<char *>(round_up(at, kStack));
}
KF_INLINE unsigned char *fence_of(const kf_launch *launch, int64_t kernel_bytes) {
    return static_cast<unsigned char *>(launch->scratch) + round_up(kernel_bytes, 64);
}

}  // namespace fibers

KF_INLINE int32_t thread() { return fibers::self()->index; }
KF_INLINE int32_t group_x() { return fibers::self()->group->x; }
KF_INLINE int32_t group_y() { return fibers::self()->group->y; }
KF_INLINE int32_t group_z() { return fibers::self()->group->z; }
KF_INLINE int32_t groups_z() { return fibers::self()->group->groups_z; }

KF_INLINE void sync() {
    fibers::Group *group = fibers::self()->group;
    fibers::meet(group->all, group->threads);
}

KF_INLINE uint32_t exchange(uint32_t v, int32_t lane) {
    fibers::Fiber *fiber = fibers::self();
    fibers::Group *group = fiber->group;
    const int32_t first = fiber->index / KF_WARP * KF_WARP, left = group->threads - first, size = left < KF_WARP ? left : KF_WARP;
    fibers::require(lane >= 0 && lane < size);
    group->exchanged[fiber->index] = v;
    fibers::meet(group->warps[first / KF_WARP], size);
    const uint32_t found = group->exchanged[first + lane];
    fibers::meet(group->warps[first / KF_WARP], size);
    return found;
}

KF_INLINE int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
    for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
    return c;
}

}  // namespace kf

#endif
