// Confining a program that kforge starts but whose input it does not trust: a compiler reading a candidate's source.
//
// Each step reports whether it holds, because kernels and containers differ in what they allow; the launcher decides what
// it insists on. The runner, which executes candidates themselves, has the stricter ../jail.h.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kforge_sandbox {

inline bool write_text(const char *path, const std::string &text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool whole = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    close(file);
    return whole;
}

// New network, IPC, host name and process-id namespaces (the last for the next child). Root needs no user namespace for
// them and must not make one: in it, its uid would still be the host's 0. False where the system does not allow any.
inline bool isolate() {
    const int wanted = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID;
    if (geteuid() == 0) return unshare(wanted) == 0;
    const std::string user = std::to_string(geteuid()), group = std::to_string(getegid());
    if (unshare(CLONE_NEWUSER | wanted)) return false;
    return write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", user + " " + user + " 1") &&
           write_text("/proc/self/gid_map", group + " " + group + " 1");
}

// Interface of linux/landlock.h, spelt out so that old headers suffice.
namespace landlock {
constexpr uint64_t execute = 1 << 0, write_file = 1 << 1, read_file = 1 << 2, read_dir = 1 << 3, make_char = 1 << 6,
                   make_block = 1 << 11, ioctl_device = 1 << 15;
constexpr uint64_t read_only = execute | read_file | read_dir, file_only = execute | write_file | read_file;

struct Ruleset {
    uint64_t files, net, scoped;
};
struct __attribute__((packed)) Beneath {
    uint64_t access;
    int32_t folder;
};

inline bool allow(int ruleset, const char *path, uint64_t access) {
    int folder = open(path, O_PATH | O_CLOEXEC);
    if (folder < 0) return errno == ENOENT;  // what does not exist needs no rule
    struct stat what;
    if (fstat(folder, &what) == 0 && !S_ISDIR(what.st_mode)) access &= file_only;
    Beneath rule{access, folder};
    bool done = syscall(445, ruleset, 1, &rule, 0) == 0;
    close(folder);
    return done;
}

// Only `readable` may be read and executed, only `writable` written; no TCP, no signals or abstract sockets to outsiders.
// False where the kernel has no landlock (before 5.13, or switched off).
inline bool restrict(const std::vector<std::string> &readable, const std::string &writable) {
    long version = syscall(444, nullptr, 0, 1);
    if (version < 1) return false;
    int bits = version == 1 ? 13 : version == 2 ? 14 : version < 5 ? 15 : 16;
    const uint64_t all = (uint64_t{1} << bits) - 1;
    Ruleset wanted{all, version >= 4 ? 3u : 0u, version >= 6 ? 3u : 0u};
    int ruleset = static_cast<int>(syscall(444, &wanted, version < 4 ? 8 : version < 6 ? 16 : 24, 0));
    if (ruleset < 0) return false;
    bool done = allow(ruleset, writable.c_str(), all & ~(make_char | make_block | ioctl_device)) &&
                allow(ruleset, "/dev/null", read_file | write_file);
    for (const std::string &path : readable) done = done && allow(ruleset, path.c_str(), read_only);
    done = done && syscall(446, ruleset, 0) == 0;
    close(ruleset);
    return done;
}
}  // namespace landlock

// Denies (EPERM) what no compiler needs: the network, other processes, kernel facilities, namespaces, mounts, clocks.
inline bool deny_system_calls() {
#if defined(__x86_64__)
    constexpr uint32_t arch = AUDIT_ARCH_X86_64, foreign = 0x40000000;  // x32 calls carry bit 30
#elif defined(__aarch64__)
    constexpr uint32_t arch = AUDIT_ARCH_AARCH64, foreign = 0xffffffff;
#else
#error "the sandbox's system call filter knows x86-64 and AArch64 only"
#endif
    // By number where old headers lack the name; these are the same on every architecture.
    constexpr uint32_t io_uring_setup = 425, io_uring_enter = 426, io_uring_register = 427, open_tree = 428,
                       move_mount = 429, fsopen = 430, fsconfig = 431, fsmount = 432, fspick = 433, pidfd_open = 434,
                       pidfd_getfd = 438, pidfd_send_signal = 424, mount_setattr = 442, memfd_secret = 447,
                       process_madvise = 440;
    const uint32_t denied[] = {
        SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_sendto, SYS_sendmsg,
        SYS_sendmmsg, SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev,
        SYS_kcmp, pidfd_open, pidfd_getfd, pidfd_send_signal, process_madvise, SYS_bpf, SYS_perf_event_open,
        SYS_userfaultfd, io_uring_setup, io_uring_enter, io_uring_register, SYS_keyctl, SYS_add_key, SYS_request_key,
        SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick,
        mount_setattr, SYS_unshare, SYS_setns, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load,
        SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct, SYS_quotactl, SYS_syslog, SYS_settimeofday, SYS_clock_settime,
        SYS_adjtimex, SYS_clock_adjtime, SYS_sethostname, SYS_setdomainname, SYS_memfd_create, memfd_secret,
        SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_fanotify_init, SYS_mknodat, SYS_setuid, SYS_setgid,
        SYS_setresuid, SYS_setresgid, SYS_setreuid, SYS_setregid, SYS_setgroups, SYS_capset, SYS_personality,
#if defined(__x86_64__)
        SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_mknod,
#endif
    };
    constexpr uint32_t clone3 = 435, namespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET |
                                                  CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    std::vector<sock_filter> program;
    const auto load = [&](size_t offset) {
        program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
    };
    const auto answer = [&](uint32_t value) { program.push_back(BPF_STMT(BPF_RET | BPF_K, value)); };
    const auto skip_unless = [&](int test, uint32_t value, uint8_t skipped) {
        program.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, 0, skipped));
    };
    load(offsetof(seccomp_data, arch));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 1, 0));
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
    skip_unless(BPF_JGE, foreign, 1);
    answer(SECCOMP_RET_KILL_PROCESS);
    for (uint32_t call : denied) {
        skip_unless(BPF_JEQ, call, 1);
        answer(SECCOMP_RET_ERRNO | EPERM);
    }
    skip_unless(BPF_JEQ, clone3, 1);  // its flags lie in memory, out of a filter's reach: the C library falls back to clone
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    skip_unless(BPF_JEQ, SYS_clone, 3);
    load(offsetof(seccomp_data, args));
    skip_unless(BPF_JSET, namespaces, 1);
    answer(SECCOMP_RET_ERRNO | EPERM);
    answer(SECCOMP_RET_ALLOW);
    sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0;
}

}  // namespace kforge_sandbox
