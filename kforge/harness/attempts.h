// What a candidate might try, tried by trusted code in a child that is locked down as for a candidate: the proof of the jail.
//
// One attempt a child, made on the team's last thread after the system call filter is in place; a jail that holds ends the
// process at once (SIGSYS). The exceptions come first: what must not end it, and a look at the layers beneath the filter.
#pragma once

#include "jail.h"

#include <cerrno>
#include <csignal>
#include <initializer_list>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kforge_harness {

// Bits of `Layer` that hold by trial, without a filter in front of them.
inline int64_t layers_seen() {
    int64_t held = layer_files | layer_limits;
    for (int file = 0; file < 1024; ++file) {
        if (fcntl(file, F_GETFD) >= 0) held &= ~layer_files;
    }
    for (int resource : {RLIMIT_CORE, RLIMIT_FSIZE, RLIMIT_MSGQUEUE, RLIMIT_MEMLOCK}) {
        rlimit now{1, 1};
        if (getrlimit(static_cast<__rlimit_resource>(resource), &now) || now.rlim_max != 0) held &= ~layer_limits;
    }
    rlimit time{};
    if (getrlimit(RLIMIT_CPU, &time) || time.rlim_max == RLIM_INFINITY) held &= ~layer_limits;

    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct caps[2] = {};
    const bool none = syscall(SYS_capget, &header, caps) == 0 && !caps[0].effective && !caps[1].effective &&
                      !caps[0].permitted && !caps[1].permitted;
    const bool for_good = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && setresuid(0, 0, 0) != 0;
    if (geteuid() != 0 && none && for_good) held |= layer_privileges;

    // A folder that anybody may list, were it not for landlock.
    if (open("/", O_RDONLY | O_DIRECTORY) < 0 && errno == EACCES) held |= layer_landlock;
    return held;
}

struct Attempt {
    const char *name;
    void (*make)();
};

constexpr int64_t attempt_layers = 1;

// By number where the C library would do more than the one call. Arguments are such that a call that gets through does no harm.
inline const Attempt attempts[] = {
    {"to yield", [] { sched_yield(); }},
    {"to look at the layers beneath", [] {}},
    {"to open a file", [] { open("/", O_RDONLY); }},
    {"to write to a file", [] { (void)!write(1, "x", 1); }},
    {"to make a socket", [] { socket(AF_UNIX, SOCK_STREAM, 0); }},
    {"to fork or start a thread", [] { syscall(SYS_clone, CLONE_SIGHAND, 0, 0, 0, 0); }},
    {"to do so by clone3", [] { syscall(435, nullptr, 0); }},
    {"to execute a program", [] { syscall(SYS_execve, nullptr, nullptr, nullptr); }},
    {"to signal a process", [] { kill(1, 0); }},
    {"to signal a thread", [] { syscall(SYS_tgkill, 1, 1, 0); }},
    {"to trace a process", [] { ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }},
    {"to read another process", [] { syscall(SYS_process_vm_readv, 1, nullptr, 0, nullptr, 0, 0); }},
    {"to map executable memory",
     [] { mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }},
    {"to make memory executable", [] { mprotect(nullptr, 4096, PROT_READ | PROT_EXEC); }},
    {"to grow", [] { syscall(SYS_brk, 0); }},
    {"to make a memory file", [] { syscall(SYS_memfd_create, "x", 0); }},
    {"to catch a signal", [] { syscall(SYS_rt_sigaction, SIGSEGV, nullptr, nullptr, 8); }},
    {"to block a signal", [] { syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, nullptr, 8); }},
    {"to move to another core", [] { syscall(SYS_sched_setaffinity, 0, 0, nullptr); }},
    {"to change its priority", [] { syscall(SYS_setpriority, 0, 0, 0); }},
    {"to sleep", [] { syscall(SYS_nanosleep, nullptr, nullptr); }},
    {"to set a timer", [] { syscall(SYS_timer_create, 0, nullptr, nullptr); }},
    {"to ask the kernel for the time", [] { syscall(SYS_clock_gettime, 0, nullptr); }},
    {"to count events", [] { syscall(SYS_perf_event_open, nullptr, 0, 0, 0, 0); }},
    {"to use io_uring", [] { syscall(425, 1, nullptr); }},
    {"to loosen its filter", [] { syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, nullptr); }},
#if defined(__x86_64__)
    {"to call by the 32-bit gate", [] { asm volatile("int $0x80" : : "a"(20) : "memory"); }},
    {"to call by x32 numbers", [] { syscall(0x40000000 | SYS_getpid); }},
#endif
};
constexpr int64_t attempt_count = sizeof attempts / sizeof *attempts;

}  // namespace kforge_harness
