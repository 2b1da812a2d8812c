// A child: one candidate's process, from the fork to its last call.
#pragma once

#include "attempts.h"
#ifdef KFORGE_OPENCL
#include "opencl_executor.h"
#else
#include "executor.h"
#endif
#include "futex.h"
#include "jail.h"
#include "protocol.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kforge_harness {

struct Range {
    uintptr_t begin = 0, end = 0;
    bool writable = false;
    bool holds(uintptr_t address) const { return address >= begin && address < end; }
};

struct ChildPlan {
    int control_file, slot_file, image_file;
    Range arena, reserve;
    int64_t cpu_seconds;
    int64_t needed;   // layers (jail.h) without which nothing may run
    int64_t stacks;   // offset in the slot file
    int64_t attempt;  // what the child is to try instead of serving a candidate (attempts.h); -1 for a candidate
    std::vector<int> cpus;
    struct Slot {
        int64_t address_offset, file_offset, bytes;
        bool writable;
    };
    std::vector<Slot> slots;
    bool guarded = false;  // whoever started it dies with the parent: the first process of a namespace has no other
};

// Exit statuses of a child; control.py knows them.
constexpr int survived_exit = 96;  // what was attempted did not end the process
constexpr int load_exit = 97;      // the image could not be mapped
constexpr int jail_exit = 98;      // the child could not be locked down
constexpr int fault_exit = 99;     // the fault handler ran

// What the fault handler looks at. A child has one candidate, so these are the process's.
struct FaultMap {
    Control *control;
    Range arena, reserve;
    Range slots[max_slots];
    int count;
    Range stacks;
};
inline FaultMap fault_map;

// Says where the first fault was and ends the process. Another thread that faults meanwhile waits for that.
// Not the default action: it would kill at once when two threads fault together, before either has said where.
inline void on_fault(int signal, siginfo_t *info, void *) {
    static std::atomic<bool> taken{false};
    if (taken.exchange(true)) {
        for (;;) sched_yield();
    }
    auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    Control *control = fault_map.control;
    control->signal = signal;
    control->fault_address = address;
    int fault = fault_plain;
    if (signal == SIGSEGV || signal == SIGBUS) {
        if (fault_map.reserve.holds(address)) fault = fault_guard;
        if (fault_map.stacks.holds(address)) fault = fault_stack;
        if (fault_map.arena.holds(address)) fault = fault_input;
        for (int i = 0; i < fault_map.count; ++i) {
            if (fault_map.slots[i].holds(address)) fault = fault_map.slots[i].writable ? fault_plain : fault_input;
        }
    }
    control->fault = fault;
    _exit(fault_exit);
}

inline void handle_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) sigaction(signal, &action, nullptr);
}

// Each thread needs its own: a candidate that overflows its stack could not be reported on it.
inline void alternate_stack() {
    constexpr size_t bytes = 64 * 1024;
    stack_t stack = {};
    stack.ss_sp = std::malloc(bytes);
    stack.ss_size = bytes;
    sigaltstack(&stack, nullptr);
}

// The first layer that is needed and does not hold, in words; null when there is none.
inline const char *missing(int64_t held, int64_t needed) {
    const int64_t lost = needed & ~held;
    if (lost & layer_filter) return "installing the system call filter failed";
    if (lost & layer_files) return "closing its files failed";
    if (lost & layer_privileges) return "dropping privileges failed";
    if (lost & layer_limits) return "setting its limits failed";
    if (lost & layer_landlock) return "landlock, which held before, failed";
    return nullptr;
}

// Nothing of the candidate has run yet, so its word is good. The zygote sees the exit status and wakes the parent.
[[noreturn]] inline void refuse(Control *control, int status, const char *message) {
    std::snprintf(control->message, sizeof control->message, "%s", message);
    _exit(status);
}

inline std::vector<char> read_all(int file) {
    struct stat info = {};
    if (fstat(file, &info)) return {};
    std::vector<char> data(static_cast<size_t>(info.st_size));
    size_t have = 0;
    while (have < data.size()) {
        ssize_t n = pread(file, data.data() + have, data.size() - have, static_cast<off_t>(have));
        if (n <= 0) return {};
        have += static_cast<size_t>(n);
    }
    return data;
}

[[noreturn]] inline void serve(Control *control, Executor &executor) {
    uint32_t seen = 0;
    for (;;) {
        uint32_t posted;
        while ((posted = control->posted.load(std::memory_order_acquire)) == seen) futex_wait(&control->posted, seen);
        seen = posted;
        if (control->command == command_scratch) {
            control->result = executor.scratch_bytes(*control);
        } else if (control->command == command_touch) {
            executor.touch(*control);
        } else {
            executor.run(*control);
        }
        // Workers are asleep by now, so that the parent's wake-up finds a free core.
        control->done.store(posted, std::memory_order_release);
        futex_wake(&control->done);
    }
}

// Says which layers beneath the filter hold, by trying.
[[noreturn]] inline void see_layers(Control *control) {
    control->result = layers_seen();
    _exit(survived_exit);
}

[[noreturn]] inline void try_it(const Attempt &attempt, Control *control, Executor &executor) {
    std::snprintf(control->message, sizeof control->message, "%s", attempt.name);
    executor.on_last_thread(attempt.make);
    _exit(survived_exit);
}

[[noreturn]] inline void become_child(const ChildPlan &plan) {
    setsid();
    auto *control = static_cast<Control *>(
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, plan.control_file, 0));
    if (control == MAP_FAILED) _exit(jail_exit);
    fault_map = {control, plan.arena, plan.reserve, {}, 0, {}};
    for (const auto &slot : plan.slots) {
        char *at = reinterpret_cast<char *>(plan.reserve.begin) + slot.address_offset;
        int access = slot.writable ? PROT_READ | PROT_WRITE : PROT_READ;
        void *got = mmap(at, static_cast<size_t>(slot.bytes), access, MAP_SHARED | MAP_FIXED, plan.slot_file, slot.file_offset);
        if (got == MAP_FAILED) refuse(control, jail_exit, "mapping a slot failed");
        auto begin = reinterpret_cast<uintptr_t>(at);
        fault_map.slots[fault_map.count++] = {begin, begin + static_cast<uintptr_t>(slot.bytes), slot.writable};
    }
    Stacks stacks;
    if (plan.attempt < 0) {
        stacks = Stacks(plan.slot_file, plan.stacks, static_cast<int>(plan.cpus.size()));
        if (!stacks.made()) refuse(control, jail_exit, "mapping the stacks failed");
        fault_map.stacks = {stacks.begin(), stacks.end(), true};
    }
    // Still shared with the other children, because nobody can write to it any more.
    if (plan.arena.end > plan.arena.begin) {
        mprotect(reinterpret_cast<void *>(plan.arena.begin), plan.arena.end - plan.arena.begin, PROT_READ);
    }
    std::vector<char> image;
    if (plan.attempt < 0) image = read_all(plan.image_file);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
#ifdef KFORGE_OPENCL
    if (!kforge_opencl::own_folder()) refuse(control, jail_exit, "it has no folder of its own");
    int64_t held = enter(plan.cpu_seconds, kforge_opencl::landlock_but_for_drivers, kforge_opencl::unpacked_bytes);
#else
    handle_faults();
    const int64_t held = enter(plan.cpu_seconds);
#endif
    if (const char *lost = missing(held | layer_filter, plan.needed)) refuse(control, jail_exit, lost);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // after the change of user, which clears it
    if (getppid() == 1 && !plan.guarded) _exit(jail_exit);

    Executor executor(plan.cpus, stacks);
#ifdef KFORGE_OPENCL
    executor.add_memory(plan.arena.begin, plan.arena.end, false);
    for (int i = 0; i < fault_map.count; ++i) {
        executor.add_memory(fault_map.slots[i].begin, fault_map.slots[i].end, fault_map.slots[i].writable);
    }
    if (plan.attempt < 0) {
        const char *wrong = executor.load(image.data(), image.size(), fault_map.slots[0].begin);
        if (wrong) refuse(control, load_exit, wrong);
    }
    handle_faults();  // in place of the driver's
    if (!limit(RLIMIT_FSIZE, 0)) held &= ~layer_limits;
    if (const char *lost = missing(held | layer_filter, plan.needed)) refuse(control, jail_exit, lost);
#else
    if (plan.attempt < 0) {
        if (const char *wrong = executor.load(image.data(), image.size())) refuse(control, load_exit, wrong);
    }
#endif
    executor.on_every_thread(alternate_stack);
    if (plan.attempt == attempt_layers) see_layers(control);
    if (!filter_system_calls() && (plan.needed & layer_filter)) refuse(control, jail_exit, missing(held, layer_filter));
    if (plan.attempt >= 0) try_it(attempts[plan.attempt], control, executor);
#ifdef KFORGE_OPENCL
    executor.unlock();
#endif
    control->state.store(ready);
    futex_wake(&control->state);
    serve(control, executor);
}

}  // namespace kforge_harness
