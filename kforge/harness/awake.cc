// kforge-awake CPU...: a process for each that computes nothing, in the scheduler's idle class, until its parent goes away.
// A processor that has nothing to do is put to sleep, and of a guest's the host takes some: waking it takes tens of
// microseconds, and never the same. Whoever wants to run takes the processor from this process at once.
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace {

[[noreturn]] void stay_awake(int cpu, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const sched_param none{};
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(static_cast<size_t>(cpu), &mine);
    // Outside the idle class it would take half of the processor from what is to be measured.
    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0 || sched_setaffinity(0, sizeof mine, &mine) != 0) _exit(1);
    for (;;) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        asm volatile("" ::: "memory");
#endif
    }
}

}  // namespace

int main(int count, char **cpus) {
    const pid_t parent = getppid(), me = getpid();
    for (int i = 2; i < count; ++i) {
        if (fork() == 0) stay_awake(std::atoi(cpus[i]), me);
    }
    if (count > 1) stay_awake(std::atoi(cpus[1]), parent);
}
