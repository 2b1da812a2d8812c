// kforge-runner: the zygote. One process per workload holds the inputs and forks a locked-down child per candidate, so that a
// candidate and its incumbent read the same physical pages at the same addresses and a trial costs a fork.
//
// Single-threaded on purpose (a fork copies one thread). Trusted: no byte of a candidate runs in this process.
// Usage: kforge-runner SOCKET (an inherited SOCK_SEQPACKET descriptor; protocol.h has the messages). Ends with its parent.

#include "child.h"

#include <map>

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

namespace kforge_harness {

constexpr size_t huge_page = 2u << 20;

struct Message {
    std::vector<int64_t> words;
    std::vector<int> files;
};

class Zygote {
  public:
    explicit Zygote(int socket) : socket_(socket) {}

    int serve() {
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, SIGCHLD);
        sigprocmask(SIG_BLOCK, &mask, nullptr);
        int deaths = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
        for (;;) {
            pollfd files[] = {{socket_, POLLIN, 0}, {deaths, POLLIN, 0}};
            if (poll(files, 2, -1) < 0) continue;
            if (files[1].revents) {
                signalfd_siginfo info;
                while (read(deaths, &info, sizeof info) > 0) {
                }
                reap();
            }
            if (files[0].revents) {
                Message message;
                if (!receive(message)) return end();
                handle(message);
            }
        }
    }

  private:
    bool receive(Message &message) {
        static int64_t buffer[16384];
        alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
        iovec data{buffer, sizeof buffer};
        msghdr header = {};
        header.msg_iov = &data;
        header.msg_iovlen = 1;
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        ssize_t n = recvmsg(socket_, &header, MSG_CMSG_CLOEXEC);
        if (n <= 0) return false;
        message.words.assign(buffer, buffer + n / 8);
        for (cmsghdr *part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
            if (part->cmsg_type != SCM_RIGHTS) continue;
            const int *files = reinterpret_cast<const int *>(CMSG_DATA(part));
            message.files.assign(files, files + (part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        }
        return true;
    }

    void reply(std::initializer_list<int64_t> words) { send(socket_, words.begin(), words.size() * 8, MSG_NOSIGNAL); }

    void handle(const Message &message) {
        switch (message.words[0]) {
            case verb_arena: fill_arena(message); break;
            case verb_spawn: spawn(message); break;
            case verb_attempt: attempt(message); break;
            case verb_kill: kill_child(static_cast<pid_t>(message.words[1])); break;
            default: reply({reply_error, EINVAL, message.words[0]});
        }
        for (int file : message.files) close(file);
    }

    // Private memory, filled once, in huge pages where the system has them: what the engine's weights look like.
    void fill_arena(const Message &message) {
        const int64_t *word = message.words.data() + 1;
        auto arena_bytes = static_cast<size_t>(word[0]);
        auto reserve_bytes = static_cast<size_t>(word[1]);
        int64_t segments = word[2];
        word += 3;
        void *reserve = mmap(nullptr, reserve_bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserve == MAP_FAILED) return reply({reply_error, errno, verb_arena});
        reserve_ = {align(reserve), align(reserve) + reserve_bytes, false};
        if (arena_bytes) {
            void *arena = mmap(nullptr, arena_bytes + huge_page, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (arena == MAP_FAILED) return reply({reply_error, errno, verb_arena});
            arena_ = {align(arena), align(arena) + arena_bytes, false};
            madvise(reinterpret_cast<void *>(arena_.begin), arena_bytes, MADV_HUGEPAGE);
        }
        for (int64_t i = 0; i < segments; ++i, word += 5) {
            char *first = reinterpret_cast<char *>(arena_.begin) + word[0];
            for (int64_t have = 0; have < word[2];) {
                ssize_t n = pread(message.files[0], first + have, static_cast<size_t>(word[2] - have), word[1] + have);
                if (n <= 0) return reply({reply_error, n ? errno : EIO, verb_arena});
                have += n;
            }
            for (int64_t copy = 1; copy < word[3]; ++copy) {
                std::memcpy(first + copy * word[4], first, static_cast<size_t>(word[2]));
            }
        }
        reply({reply_arena, static_cast<int64_t>(arena_.begin), static_cast<int64_t>(reserve_.begin)});
    }

    static uintptr_t align(void *address) {
        return (reinterpret_cast<uintptr_t>(address) + huge_page - 1) / huge_page * huge_page;
    }

    void spawn(const Message &message) {
        if (message.files.size() != 3) return reply({reply_error, EBADF, verb_spawn});
        const int64_t *word = message.words.data() + 1;
        ChildPlan plan{message.files[0], message.files[1], message.files[2], arena_, reserve_, word[1], word[2], word[3], -1, {}, {}};
        int64_t threads = word[0], slots = word[4];
        word += 5;
        for (int64_t i = 0; i < slots; ++i, word += 4) plan.slots.push_back({word[0], word[1], word[2], word[3] != 0});
        for (int64_t i = 0; i < threads; ++i) plan.cpus.push_back(static_cast<int>(*word++));
        start(plan);
    }

    void attempt(const Message &message) {
        const int64_t *word = message.words.data() + 1;
        if (message.files.size() != 1 || word[0] < 0 || word[0] >= attempt_count) {
            return reply({reply_error, EINVAL, verb_attempt});
        }
        ChildPlan plan{message.files[0], -1, -1, arena_, reserve_, 10, 0, 0, word[0], {}, {}};
        for (int64_t i = 0; i < word[1]; ++i) plan.cpus.push_back(static_cast<int>(word[2 + i]));
        start(plan);
    }

    void start(const ChildPlan &plan) {
        void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, plan.control_file, 0);
        if (page == MAP_FAILED) return reply({reply_error, errno, verb_spawn});
        madvise(page, 4096, MADV_DONTFORK);  // one child must not see another's page
        pid_t pid = fork();
        if (pid == 0) become_child(plan);
        if (pid < 0) {
            int error = errno;
            munmap(page, 4096);
            return reply({reply_error, error, verb_spawn});
        }
        children_[pid] = static_cast<Control *>(page);
        reply({reply_spawn, pid, attempt_count});
    }

    void kill_child(pid_t pid) {
        if (!children_.count(pid)) return;  // died by itself: its message is on the way
        kill(pid, SIGKILL);
        bury(pid, true);
    }

    void reap() {
        std::vector<pid_t> all;
        for (const auto &[pid, page] : children_) all.push_back(pid);
        for (pid_t pid : all) bury(pid, false);
    }

    // Reports a death, and wakes a parent that sleeps on the child's page.
    void bury(pid_t pid, bool wait) {
        int status = 0;
        if (waitpid(pid, &status, wait ? 0 : WNOHANG) != pid) return;
        Control *control = children_[pid];
        children_.erase(pid);
        reply({reply_dead, pid, status});
        control->state.store(dead);
        control->done.fetch_add(1u << 31);
        futex_wake(&control->state);
        futex_wake(&control->done);
        munmap(control, 4096);
    }

    int end() {
        for (const auto &[pid, page] : children_) {
            kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
        return 0;
    }

    int socket_;
    Range arena_, reserve_;
    std::map<pid_t, Control *> children_;
};

}  // namespace kforge_harness

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    return kforge_harness::Zygote(std::atoi(argv[1])).serve();
}
