// A team of threads, one per core; the caller is thread 0.
#ifndef KFORGE_NATIVE_TEAM_H
#define KFORGE_NATIVE_TEAM_H

#include <atomic>
#include <cstdint>
#include <mutex>
#include <sched.h>
#include <thread>
#include <vector>

#include "barrier.h"

namespace kforge {

// `threads` CPU numbers that this process may use: one per physical core first, then their hardware siblings, then again
// from the start when there are more threads than CPUs.
std::vector<int> default_cores(int threads);

// Pins the calling thread to a core while it lives. Setting an affinity costs as much as dozens of barriers, so a scope
// inside another one for the same core does nothing: hold one around many runs. Destroy it on the thread that made it.
class PinnedScope {
 public:
  explicit PinnedScope(int core);
  ~PinnedScope();
  PinnedScope(const PinnedScope &) = delete;
  PinnedScope &operator=(const PinnedScope &) = delete;

 private:
  cpu_set_t before_;
  int outer_;
  bool changed_ = false;
};

class Team {
 public:
  using Job = void (*)(void *context, int thread);

  static constexpr int64_t kSpinNs = 100000;

  // One entry of `cores` per thread. Throws std::system_error when a thread cannot be started.
  // With more threads than distinct cores nobody spins: the thread that is waited for needs the core.
  explicit Team(const std::vector<int> &cores, int64_t spin_ns = kSpinNs);
  ~Team();
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;

  // Calls job(context, t) on every thread t and returns when all have. One caller at a time; others queue up.
  // Does not touch the caller's affinity (no system call but futex): see PinnedScope.
  void run(Job job, void *context);

  // Returns once every worker sleeps, so that nothing of this team takes CPU time until the next run.
  void park();

  int threads() const { return static_cast<int>(cores_.size()); }
  int core(int thread) const { return cores_[static_cast<std::size_t>(thread)]; }
  bool oversubscribed() const { return spins_ == 0; }

  Barrier &kernel_barrier() { return kernel_barrier_; }      // what kernels call
  Barrier &executor_barrier() { return executor_barrier_; }  // between launches; a miscounting kernel cannot disturb it

 private:
  void work(int thread);

  const std::vector<int> cores_;
  const int64_t spins_;
  Barrier kernel_barrier_;
  Barrier executor_barrier_;
  Barrier finished_;
  Signal started_;
  std::atomic<bool> parking_{false};
  bool stopping_ = false;   // read by workers after started_ has advanced
  Job job_ = nullptr;       // the same
  void *context_ = nullptr;
  std::mutex caller_;
  std::vector<std::thread> workers_;
};

}  // namespace kforge
#endif
