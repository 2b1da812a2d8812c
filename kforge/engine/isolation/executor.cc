// kforge-executor: programs of kernels in a process of their own, locked down as the harness's runner locks down a candidate.
//
//   kforge-executor NEEDED PAGE LIFE PLAN BLOCK...      (layers of jail.h; then inherited descriptors)
//
// Two processes. The warden waits for the engine to go away (LIFE ends) or for the executor to die, wakes the engine then, and
// ends as the executor did. The executor maps the blocks, enters the jail, loads kernels and builds programs as PLAN says,
// installs the system call filter, and only then runs the first byte of a kernel. It keeps no state: what is in the blocks is all.
#include "futex.h"
#include "jail.h"
#include "page.h"
#ifdef KFORGE_OPENCL
#include "device_steps.h"
#else
#include "native_steps.h"
#endif

#include "loader.h"
#include "memory.h"
#include "program.h"
#include "team.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

namespace kforge_engine {

using kforge_harness::futex_wait;
using kforge_harness::futex_wake;
#ifdef KFORGE_OPENCL
using device::Kernels;
using device::Steps;
#else
using native::Kernels;
using native::Steps;
#endif

// Exit statuses; process.py knows them.
constexpr int refused_exit = 98;  // it could not be made ready; the page says why
constexpr int fault_exit = 99;    // a kernel faulted; the page says where

Page *page;

[[noreturn]] void refuse(const std::string &why) {
    std::snprintf(page->message, sizeof page->message, "%s", why.c_str());
    _exit(refused_exit);
}

// The plan (plan.py): 64-bit words, in the order in which they are read here, and the kernels' images after them.
class Plan {
  public:
    explicit Plan(int file) {
        struct stat info = {};
        if (fstat(file, &info) || info.st_size < 8) refuse("the plan cannot be read");
        bytes_ = static_cast<size_t>(info.st_size);
        void *mapped = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped == MAP_FAILED) refuse("the plan cannot be mapped");
        data_ = static_cast<const uint8_t *>(mapped);
    }

    int64_t next() {
        if (at_ + 8 > bytes_) refuse("the plan is cut short");
        int64_t value;
        std::memcpy(&value, data_ + at_, 8);
        at_ += 8;
        return value;
    }

    // A count of things or an index into them.
    size_t next_below(size_t limit) {
        const int64_t value = next();
        if (value < 0 || static_cast<uint64_t>(value) >= limit) refuse("the plan counts wrong");
        return static_cast<size_t>(value);
    }

    const uint8_t *bytes(size_t offset, size_t size) const {
        if (offset > bytes_ || size > bytes_ - offset) refuse("the plan is cut short");
        return data_ + offset;
    }

  private:
    const uint8_t *data_ = nullptr;
    size_t bytes_ = 0, at_ = 0;
};

constexpr size_t many = size_t{1} << 40;

class Executor {
  public:
    Executor(Plan &plan, const std::vector<int> &files) {
        // Which cores are siblings is read from files, so before the jail is entered.
        cores_ = kforge::default_cores(static_cast<int>(plan.next_below(4096)));
        scratch_bytes_ = plan.next_below(many);
        const size_t blocks = plan.next_below(files.size() + 1);
        for (size_t i = 0; i < blocks; ++i) {
            const size_t bytes = plan.next_below(many);
            const bool writable = plan.next() != 0;
            void *memory = kforge::map_shared(files[i], bytes, writable);
            if (memory == nullptr) refuse("a block of memory cannot be mapped");
            blocks_.push_back({static_cast<char *>(memory), bytes, writable});
        }
        // For whatever kernels want, since they cannot be asked before the jail is shut: memory that is not touched costs nothing.
        scratch_ = kforge::map_huge(scratch_bytes_);
        if (scratch_ == nullptr) refuse("scratch memory cannot be mapped");
    }

    // After the jail is entered: what remains open to it is only to map memory and start threads.
    void build(Plan &plan) {
        page->core = cores_[0];
        pinned_ = std::make_unique<kforge::PinnedScope>(cores_[0]);
        team_ = std::make_unique<kforge::Team>(cores_);
        kernels_ = std::make_unique<Kernels>(*team_);
        kernels_->add_memory(scratch());
        for (const Memory &block : blocks_) kernels_->add_memory(block);
        const size_t kernels = plan.next_below(many);
        for (size_t i = 0; i < kernels; ++i) {
            const size_t offset = plan.next_below(many), bytes = plan.next_below(many);
            const std::string wrong = kernels_->load(plan.bytes(offset, bytes), bytes);
            if (!wrong.empty()) refuse("a kernel is refused: " + wrong);
        }
        const size_t programs = plan.next_below(many);
        for (size_t i = 0; i < programs; ++i) add_program(plan);
    }

    void on_every_thread(void (*function)()) {
        team_->run([](void *f, int) { reinterpret_cast<void (*)()>(f)(); }, reinterpret_cast<void *>(function));
    }

    [[noreturn]] void serve() {
        uint32_t seen = 0;
        for (;;) {
            uint32_t posted;
            while ((posted = page->posted.load(std::memory_order_acquire)) == seen) futex_wait(&page->posted, seen);
            seen = posted;
            Steps &program = *programs_[static_cast<size_t>(page->program) % programs_.size()];
            page->result = page->command == command_profile ? program.profile(page->nanoseconds) : program.run();
            page->done.store(posted, std::memory_order_release);
            futex_wake(&page->done);
        }
    }

  private:
    Memory scratch() const { return {static_cast<char *>(scratch_), scratch_bytes_, true}; }

    void *place(Plan &plan) {
        const Memory &block = blocks_[plan.next_below(blocks_.size())];
        return block.begin + plan.next_below(block.bytes + 1);
    }

    void add_program(Plan &plan) {
        programs_.push_back(std::make_unique<Steps>(*team_, *kernels_, scratch(), &page->launch));
        const size_t launches = plan.next_below(max_launches + 1);
        for (size_t i = 0; i < launches; ++i) {
            const size_t kernel = plan.next_below(kernels_->size());
            const auto *axes = static_cast<const int64_t *>(place(plan));
            const auto *scalars = static_cast<const double *>(place(plan));
            std::vector<kforge::TensorArgument> tensors(plan.next_below(many));
            for (kforge::TensorArgument &tensor : tensors) {
                tensor.data = place(plan);
                tensor.strides.resize(plan.next_below(many));
                for (int64_t &stride : tensor.strides) stride = plan.next();
            }
            programs_.back()->add(kernel, std::move(tensors), axes, scalars);
        }
    }

    std::vector<int> cores_;
    size_t scratch_bytes_;
    void *scratch_;
    std::vector<Memory> blocks_;
    std::unique_ptr<kforge::PinnedScope> pinned_;
    std::unique_ptr<kforge::Team> team_;
    std::unique_ptr<Kernels> kernels_;
    std::vector<std::unique_ptr<Steps>> programs_;
};

// Says where the first fault was and ends the process; another thread that faults meanwhile waits for that.
void on_fault(int signal, siginfo_t *info, void *) {
    static std::atomic<bool> taken{false};
    if (taken.exchange(true)) {
        for (;;) sched_yield();
    }
    page->signal = signal;
    page->address = reinterpret_cast<uintptr_t>(info->si_addr);
    _exit(fault_exit);
}

void handle_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) sigaction(signal, &action, nullptr);
}

// Each thread needs its own stack for it: a kernel that overflows its stack could not be reported on that.
void alternate_stack() {
    constexpr size_t bytes = 64 * 1024;
    stack_t stack = {};
    stack.ss_sp = std::malloc(bytes);
    stack.ss_size = bytes;
    sigaltstack(&stack, nullptr);
}

[[noreturn]] void become_executor(int64_t needed, int plan_file, const std::vector<int> &files, pid_t warden) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    Plan plan(plan_file);
    Executor executor(plan, files);
    constexpr int64_t for_ever = -1;  // as RLIM_INFINITY: an engine may run for days
#ifdef KFORGE_OPENCL
    if (!kforge_opencl::own_folder()) refuse("it has no folder of its own");
    kforge_opencl::steady_heap();
    const int64_t held = kforge_harness::enter(for_ever, kforge_opencl::landlock_but_for_drivers, kforge_opencl::unpacked_bytes);
#else
    handle_faults();
    const int64_t held = kforge_harness::enter(for_ever);
#endif
    if (needed & ~(held | kforge_harness::layer_filter)) refuse("it cannot be locked down here: see kforge doctor");
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // after the change of user, which clears it
    if (getppid() != warden) _exit(refused_exit);
    executor.build(plan);
#ifdef KFORGE_OPENCL
    kforge_opencl::fill_heap();
    handle_faults();  // in place of the driver's
    if (!kforge_harness::limit(RLIMIT_FSIZE, 0)) refuse("it cannot be locked down here: see kforge doctor");
#endif
    executor.on_every_thread(alternate_stack);
    if (!kforge_harness::filter_system_calls()) refuse("the system call filter cannot be installed: see kforge doctor");
#ifdef KFORGE_OPENCL
    kforge_opencl::open_gates();
#endif
    page->state.store(ready);
    futex_wake(&page->state);
    executor.serve();
}

[[noreturn]] void end_like(int status) {
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // the same signal, but no core of the warden
    signal(WTERMSIG(status), SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    kill(getpid(), WTERMSIG(status));
    _exit(128 + WTERMSIG(status));
}

// The engine has gone when LIFE ends, or, where a fork of it keeps that open, when the warden has another parent.
[[noreturn]] void watch(pid_t engine, pid_t executor, int life, int deaths) {
    constexpr int look_ms = 1000;
    for (;;) {
        pollfd files[] = {{life, POLLIN, 0}, {deaths, POLLIN, 0}};
        if (poll(files, 2, look_ms) < 0) continue;
        int status = 0;
        if (files[0].revents || getppid() != engine) {
            kill(executor, SIGKILL);
            waitpid(executor, &status, 0);
            _exit(0);
        }
        if (waitpid(executor, &status, WNOHANG) == executor) {
            page->state.store(dead);
            page->done.fetch_add(1u << 31);
            futex_wake(&page->state);
            futex_wake(&page->done);
            end_like(status);
        }
    }
}

}  // namespace kforge_engine

int main(int argc, char **argv) {
    using namespace kforge_engine;
    if (argc < 5) return 64;
    std::vector<int> files;
    for (int i = 5; i < argc; ++i) files.push_back(std::atoi(argv[i]));
    void *mapped = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, std::atoi(argv[2]), 0);
    if (mapped == MAP_FAILED) return 64;
    page = static_cast<Page *>(mapped);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_BLOCK, &mask, nullptr);
    const int deaths = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    const pid_t engine = getppid(), warden = getpid();
    const pid_t child = fork();
    if (child == 0) become_executor(std::atoll(argv[1]), std::atoi(argv[4]), files, warden);
    if (child < 0) return 64;
    watch(engine, child, std::atoi(argv[3]), deaths);
}
