#include "program.h"

#include <utility>

#include "float_control.h"

namespace kforge {

int64_t Program::add(const LoadedKernel &kernel, std::vector<TensorArgument> tensors, const int64_t *axes,
                     const double *scalars) {
  auto launch = std::make_unique<Launch>();
  launch->kernel = &kernel;
  launch->arguments = std::move(tensors);
  for (const TensorArgument &t : launch->arguments) launch->tensors.push_back({t.data, t.strides.data()});
  launch->per_thread.resize(static_cast<std::size_t>(team_.threads()));
  for (int thread = 0; thread < team_.threads(); ++thread) {
    kf_launch &l = launch->per_thread[static_cast<std::size_t>(thread)].launch;
    l.abi_version = KFORGE_ABI_VERSION;
    l.size = sizeof(kf_launch);
    l.tensors = launch->tensors.data();
    l.axes = axes;
    l.scalars = scalars;
    l.scratch = nullptr;
    l.scratch_bytes = 0;
    l.thread = thread;
    l.threads = team_.threads();
    l.team = &team_.kernel_barrier();
    l.barrier = &Barrier::wait_on;
  }
  launches_.push_back(std::move(launch));
  return size() - 1;
}

void Program::set_scratch(int64_t launch, void *scratch, int64_t bytes) {
  for (ThreadLaunch &t : launches_[static_cast<std::size_t>(launch)]->per_thread) {
    t.launch.scratch = bytes > 0 ? scratch : nullptr;
    t.launch.scratch_bytes = bytes;
  }
}

int64_t Program::replay(int64_t *nanoseconds) {
  for (std::size_t i = 0; i < launches_.size(); ++i) {
    const Launch &launch = *launches_[i];
    const kf_launch &l = launch.per_thread[0].launch;
    if (launch.kernel->wants_scratch() && launch.kernel->scratch_bytes(l.axes, l.threads) > l.scratch_bytes) {
      return static_cast<int64_t>(i);
    }
  }
  if (launches_.empty()) return kDone;
  nanoseconds_ = nanoseconds;
  const FloatControl before = FloatControl::read();
  team_.run([](void *program, int thread) { static_cast<Program *>(program)->work(thread); }, this);
  before.write();
  return kDone;
}

void Program::work(int thread) {
  const bool timed = thread == 0 && nanoseconds_ != nullptr;
  int64_t start = timed ? now_ns() : 0;
  for (std::size_t i = 0; i < launches_.size(); ++i) {
    Launch &launch = *launches_[i];
    if (thread == 0 && progress_ != nullptr) *progress_ = first_ + static_cast<int64_t>(i);
    FloatControl::defaults().write();
    launch.kernel->entry()(&launch.per_thread[static_cast<std::size_t>(thread)].launch);
    team_.executor_barrier().wait();
    if (thread == 0) ++launch.calls;
    if (timed) {
      const int64_t end = now_ns();
      nanoseconds_[i] = end - start;
      start = end;
    }
  }
}

}  // namespace kforge
