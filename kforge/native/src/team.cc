#include "team.h"

#include <cstdio>
#include <set>
#include <string>

namespace kforge {

namespace {

thread_local int pinned_core = -1;  // by the innermost PinnedScope of this thread

// First hardware thread of the core that `cpu` belongs to; `cpu` itself when the kernel does not say.
int first_sibling(int cpu) {
  const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
  int first = cpu;
  if (FILE *file = std::fopen(path.c_str(), "r")) {
    if (std::fscanf(file, "%d", &first) != 1) first = cpu;
    std::fclose(file);
  }
  return first;
}

int64_t spins_for(const std::vector<int> &cores, int64_t spin_ns) {
  const std::set<int> distinct(cores.begin(), cores.end());
  return distinct.size() < cores.size() ? 0 : relax_count(spin_ns);
}

}  // namespace

std::vector<int> default_cores(int threads) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cores;
  std::vector<int> siblings;
  std::set<int> seen;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      (seen.insert(first_sibling(cpu)).second ? cores : siblings).push_back(cpu);
    }
  }
  cores.insert(cores.end(), siblings.begin(), siblings.end());
  if (cores.empty()) cores.push_back(0);
  const std::size_t available = cores.size();
  std::vector<int> chosen;
  for (int t = 0; t < threads; ++t) chosen.push_back(cores[static_cast<std::size_t>(t) % available]);
  return chosen;
}

PinnedScope::PinnedScope(int core) : outer_(pinned_core) {
  if (outer_ == core) return;
  if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  changed_ = sched_setaffinity(0, sizeof only, &only) == 0;
  if (changed_) pinned_core = core;
}

PinnedScope::~PinnedScope() {
  if (!changed_) return;
  sched_setaffinity(0, sizeof before_, &before_);
  pinned_core = outer_;
}

Team::Team(const std::vector<int> &cores, int64_t spin_ns)
    : cores_(cores),
      spins_(spins_for(cores, spin_ns)),
      kernel_barrier_(static_cast<int>(cores.size()), spins_),
      executor_barrier_(static_cast<int>(cores.size()), spins_),
      finished_(static_cast<int>(cores.size()), spins_) {
  for (int thread = 1; thread < threads(); ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Team::~Team() {
  stopping_ = true;
  started_.advance();
  for (std::thread &worker : workers_) worker.join();
}

void Team::run(Job job, void *context) {
  const std::lock_guard<std::mutex> lock(caller_);
  job_ = job;
  context_ = context;
  parking_.store(false, std::memory_order_relaxed);
  started_.advance();
  job(context, 0);
  finished_.wait();
}

void Team::park() {
  const std::lock_guard<std::mutex> lock(caller_);
  parking_.store(true, std::memory_order_relaxed);
  while (started_.sleepers() != workers_.size()) std::this_thread::yield();
}

void Team::work(int thread) {
  // Workers stay pinned for life; a core that has gone away only costs speed.
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core(thread), &only);
  sched_setaffinity(0, sizeof only, &only);
  for (uint32_t seen = 0;; ++seen) {
    started_.wait_change(seen, spins_, &parking_);
    if (stopping_) return;
    job_(context_, thread);
    finished_.wait();
  }
}

}  // namespace kforge
