// Locking a child down before the first byte of a candidate runs.
//
// Each layer says whether it holds, because kernels and containers differ in what they allow; who starts the child names the
// layers that it insists on (those that were proven to hold on this machine), and without one of these nothing runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kforge_harness {

constexpr uid_t nobody = 65534;

// Bits, shared with proof.py.
enum Layer : int64_t {
    layer_filter = 1,      // no system call but to sleep, wake and end, on any thread
    layer_files = 2,       // no open file
    layer_privileges = 4,  // not root, no capability, no way to gain one
    layer_limits = 8,      // no core, no file content, bounded processor time
    layer_landlock = 16,   // no file, no network, no signal to anybody outside: a second lock behind the filter
};

inline bool close_files() {
    if (syscall(SYS_close_range, 0, ~0u, 0) == 0) return true;
    const long most = sysconf(_SC_OPEN_MAX);
    for (int file = 0; file < most; ++file) close(file);
    return most > 0;
}

// No file, no network, no signal to anybody outside. False where the kernel has no landlock (before 5.13, or switched off).
// An ordinary user may restrict itself only once it can gain no privileges.
inline bool landlock() {
#ifdef SYS_landlock_create_ruleset
    constexpr long create = SYS_landlock_create_ruleset, restrict_self = SYS_landlock_restrict_self;
#else
    constexpr long create = 444, restrict_self = 446;
#endif
    struct Ruleset {
        uint64_t files, net, scoped;
    };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return false;
    long version = syscall(create, nullptr, 0, 1);
    if (version < 1) return false;
    // Access rights known to each version of the kernel's interface (uapi/linux/landlock.h).
    int bits = version == 1 ? 13 : version == 2 ? 14 : version < 5 ? 15 : 16;
    Ruleset ruleset{(uint64_t{1} << bits) - 1, version >= 4 ? 3u : 0u, version >= 6 ? 3u : 0u};
    size_t size = version < 4 ? 8 : version < 6 ? 16 : 24;
    long fd = syscall(create, &ruleset, size, 0);
    if (fd < 0) return false;
    bool done = syscall(restrict_self, fd, 0) == 0;
    close(static_cast<int>(fd));
    return done;
}

// As root: becomes nobody, with no capability left. As an ordinary user there is nothing to drop. False on failure (errno says why).
inline bool drop_privileges() {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return false;
    bool dropped = true;
    if (geteuid() == 0) {
        for (int cap = 0; cap < 64; ++cap) {
            if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
        }
        dropped = !setgroups(0, nullptr) && !setresgid(nobody, nobody, nobody) && !setresuid(nobody, nobody, nobody);
    }
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    if (syscall(SYS_capset, &header, none)) return false;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    return dropped;
}

// At most `value`, for good: a stricter limit that is there already stays.
inline bool limit(int resource, rlim_t value) {
    const auto which = static_cast<__rlimit_resource>(resource);
    rlimit now{};
    if (getrlimit(which, &now)) return false;
    if (now.rlim_max < value) value = now.rlim_max;
    rlimit both{value, value};
    return setrlimit(which, &both) == 0;
}

inline bool set_limits(int64_t cpu_seconds, int64_t file_bytes) {
    bool done = limit(RLIMIT_CORE, 0);
    done = limit(RLIMIT_FSIZE, static_cast<rlim_t>(file_bytes)) && done;
    done = limit(RLIMIT_MSGQUEUE, 0) && done;
    done = limit(RLIMIT_MEMLOCK, 0) && done;
    // A backstop: the parent's clock kills long before.
    return limit(RLIMIT_CPU, static_cast<rlim_t>(cpu_seconds)) && done;
}

// All layers but the filter, which must wait for threads to start and memory to be mapped. The bits of those that hold.
// A process that must still open a device has a landlock of its own and may write files of `file_bytes` until it needs no more.
inline int64_t enter(int64_t cpu_seconds, bool (*restrict_files)() = landlock, int64_t file_bytes = 0) {
    int64_t held = 0;
    if (close_files()) held |= layer_files;
    if (set_limits(cpu_seconds, file_bytes)) held |= layer_limits;
    if (restrict_files()) held |= layer_landlock;
    if (drop_privileges()) held |= layer_privileges;
    return held;
}

// On every thread of the process: what a sleeping team needs, and the ways to die. Anything else kills the process (SIGSYS).
inline bool filter_system_calls() {
#if defined(__x86_64__)
    constexpr uint32_t arch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
    constexpr uint32_t arch = AUDIT_ARCH_AARCH64;
#else
#error "the runner's system call filter knows x86-64 and AArch64 only"
#endif
    const uint32_t allowed[] = {SYS_futex, SYS_exit, SYS_exit_group, SYS_sched_yield, SYS_rt_sigreturn, SYS_restart_syscall};
    constexpr int count = sizeof allowed / sizeof *allowed;
    sock_filter program[count + 6];
    int n = 0;
    program[n++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
    program[n++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 1, 0);
    program[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    program[n++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    // Compared for equality, so the x32 variants (bit 30 set) match none.
    for (int i = 0; i < count; ++i) {
        program[n++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], static_cast<uint8_t>(count - i), 0);
    }
    program[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    program[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    sock_fprog filter{static_cast<unsigned short>(n), program};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

}  // namespace kforge_harness
