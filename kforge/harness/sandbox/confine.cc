// kforge-confine: runs one command confined to a folder.
//
//   kforge-confine CPU_SECONDS MEMORY_BYTES FILE_BYTES DROP NEEDED WORK READABLE... -- COMMAND...
//   kforge-confine CPU_SECONDS MEMORY_BYTES FILE_BYTES DROP NEEDED WORK READABLE... -- --probe FILE
//
// The current folder must be WORK, the only one that the command can write to; it reads and executes READABLE only. With
// DROP = 1, root becomes nobody (WORK must be nobody's); with 0 it keeps its uid but no capability, for a toolchain that
// nobody cannot reach. NEEDED are the bits of the layers (below) without which the command must not run: those that were
// proven to hold on this machine. Limits and the loss of privileges are always needed. The exit status or signal is the
// command's. With --probe it tries what it forbids, FILE being one that anybody else may read, beside a folder that anybody
// may write to, and prints what holds.
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "confine.h"
#include "jail.h"

namespace {

// Shared with launch.py.
constexpr unsigned long layer_namespaces = 1, layer_landlock = 2, layer_filter = 4;

// Exit status of the launcher's own failures; no compiler ends with it.
constexpr int refused = 125;

[[noreturn]] void fail(const char *what) {
    std::fprintf(stderr, "kforge-confine: %s: %s\n", what, std::strerror(errno));
    std::_Exit(refused);
}

// Ends as the command did, so that whoever started this sees its status or signal.
[[noreturn]] void end_like(int status) {
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        kill(getpid(), WTERMSIG(status));
        std::_Exit(128 + WTERMSIG(status));
    }
    std::_Exit(WEXITSTATUS(status));
}

void wait_and_end(pid_t child) {
    for (;;) {
        int status;
        pid_t ended = wait(&status);
        if (ended == child) {
            // A namespace's first process ignores signals that it sends itself: tell the outer one by exit status.
            if (getpid() == 1 && WIFSIGNALED(status)) std::_Exit(128 + WTERMSIG(status));
            end_like(status);
        }
        if (ended < 0 && errno != EINTR) fail("wait");
    }
}

pid_t start() {
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

bool keep_user_without_capabilities() {
    for (int cap = 0; cap < 64; ++cap) {
        if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    }
    // Root's exec restores what the bounding set holds, which is now nothing.
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    return syscall(SYS_capset, &header, none) == 0;
}

bool without_privileges() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct caps[2] = {};
    if (syscall(SYS_capget, &header, caps)) return false;
    for (const auto &half : caps) {
        if (half.effective || half.permitted || half.inheritable) return false;
    }
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && (geteuid() != 0 || prctl(PR_CAPBSET_READ, 0, 0, 0, 0) == 0);
}

bool out_of_reach(const std::string &file) {
    // Both must fail for landlock's reason, while the own folder works: a child that can do nothing at all proves nothing.
    const bool unread = open(file.c_str(), O_RDONLY) < 0 && errno == EACCES;
    const bool unwritten = open((file + ".new").c_str(), O_WRONLY | O_CREAT, 0600) < 0 && errno == EACCES;
    return unread && unwritten && open("own", O_WRONLY | O_CREAT, 0600) >= 0;
}

bool refused_by_filter(long result) { return result < 0 && errno == EPERM; }

// Tries what must not work; a line "name 0|1" for each protection.
void probe(const char *file, rlim_t memory) {
    const auto say = [](const char *name, bool holds) { std::printf("%s %d\n", name, holds); };
    say("namespaces", getppid() == 1);
    say("landlock", out_of_reach(file));
    say("seccomp", refused_by_filter(socket(AF_INET, SOCK_STREAM, 0)) && refused_by_filter(socket(AF_UNIX, SOCK_STREAM, 0)) &&
                       refused_by_filter(syscall(SYS_ptrace, 0, 0, 0, 0)) && refused_by_filter(unshare(CLONE_NEWUSER)));
    rlimit size{};
    getrlimit(RLIMIT_FSIZE, &size);
    say("rlimits", size.rlim_max != RLIM_INFINITY && mmap(nullptr, memory, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED);
    say("privileges", without_privileges());
    say("unprivileged", geteuid() != 0);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 9) return refused;
    const auto number = [&](int i) { return static_cast<rlim_t>(std::strtoull(argv[i], nullptr, 10)); };
    const bool drop = std::strcmp(argv[4], "1") == 0;
    const unsigned long needed = number(5);
    const std::string work = argv[6];
    std::vector<std::string> readable;
    int at = 7;
    for (; at < argc && std::strcmp(argv[at], "--") != 0; ++at) readable.push_back(argv[at]);
    if (++at >= argc) return refused;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool own_namespaces = kforge_sandbox::isolate();
    if (!own_namespaces && (needed & layer_namespaces)) fail("namespaces, which held before");
    // The first process of the new process-id namespace: when it dies, the kernel kills everything below it.
    if (own_namespaces) {
        if (pid_t child = start()) {
            int status;
            while (waitpid(child, &status, 0) < 0) {
                if (errno != EINTR) fail("wait");
            }
            if (WIFEXITED(status) && WEXITSTATUS(status) > 128) status = WEXITSTATUS(status) - 128;  // a signal, see above
            end_like(status);
        }
    }
    if (pid_t child = start()) wait_and_end(child);

    using kforge_harness::limit;
    const bool limited = limit(RLIMIT_CORE, 0) && limit(RLIMIT_MSGQUEUE, 0) && limit(RLIMIT_CPU, number(1)) &&
                         limit(RLIMIT_AS, number(2)) && limit(RLIMIT_FSIZE, number(3)) && limit(RLIMIT_NOFILE, 256);
    if (!limited) fail("limits");
    // Counted for the whole uid: only where that uid runs nothing else, or is counted by namespace.
    const bool processes = own_namespaces || (geteuid() == 0 && drop);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (!kforge_sandbox::landlock::restrict(readable, work) && (needed & layer_landlock)) fail("landlock, which held before");
    if (geteuid() == 0 && !drop) {
        if (!keep_user_without_capabilities()) fail("capabilities");
    } else if (!kforge_harness::drop_privileges()) {
        fail("privileges");
    }
    if (processes && !limit(RLIMIT_NPROC, 256)) fail("limits");
    if (!kforge_sandbox::deny_system_calls() && (needed & layer_filter)) fail("the system call filter, which held before");
    if (std::strcmp(argv[at], "--probe") == 0 && at + 1 < argc) {
        probe(argv[at + 1], number(2));
        return 0;
    }
    execv(argv[at], argv + at);
    fail(argv[at]);
}
