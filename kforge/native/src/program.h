// A program: a list of launches that one call replays on a team, the CPU's counterpart of a CUDA graph.
#ifndef KFORGE_NATIVE_PROGRAM_H
#define KFORGE_NATIVE_PROGRAM_H

#include <cstdint>
#include <memory>
#include <vector>

#include "kforge/abi.h"
#include "loader.h"
#include "team.h"

namespace kforge {

struct TensorArgument {
  void *data;
  std::vector<int64_t> strides;  // elements
};

class Program {
 public:
  static constexpr int64_t kDone = -1;

  // The team must outlive the program.
  explicit Program(Team &team) : team_(team) {}
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  // Adds a launch; returns its index. Tensors are copied; `axes` and `scalars` are kept as pointers and read again by
  // the kernel at every replay. Kernel, axes, scalars and the tensors' memory must outlive the program.
  int64_t add(const LoadedKernel &kernel, std::vector<TensorArgument> tensors, const int64_t *axes,
              const double *scalars);

  // Scratch of one launch: 64-byte aligned, may be shared by all launches. `bytes` 0 means none.
  void set_scratch(int64_t launch, void *scratch, int64_t bytes);

  // Replays everything: MXCSR (or FPCR) at its default on every thread before each launch, a full barrier between
  // launches. Returns kDone, or the index of a launch whose axes now need more scratch than it has (nothing is run then).
  // The caller's own floating-point control is as before afterwards; its affinity is not touched.
  int64_t run() { return replay(nullptr); }

  // As run; nanoseconds of each launch, barrier included, as thread 0 sees them go into `nanoseconds`.
  int64_t profile(int64_t *nanoseconds) { return replay(nanoseconds); }

  // Where thread 0 leaves the index of the launch that it is about to begin, counted from `first`: what a process that dies was
  // doing.
  void report_progress(volatile int64_t *launch, int64_t first = 0) {
    progress_ = launch;
    first_ = first;
  }

  int64_t size() const { return static_cast<int64_t>(launches_.size()); }
  int64_t calls(int64_t launch) const { return launches_[static_cast<std::size_t>(launch)]->calls; }
  Team &team() { return team_; }

 private:
  struct alignas(kCacheLine) ThreadLaunch {
    kf_launch launch;
  };
  struct Launch {
    const LoadedKernel *kernel;
    std::vector<TensorArgument> arguments;
    std::vector<kf_tensor> tensors;
    std::vector<ThreadLaunch> per_thread;  // a kernel reads its own copy only: no line is shared between cores
    int64_t calls = 0;
  };

  int64_t replay(int64_t *nanoseconds);
  void work(int thread);

  Team &team_;
  std::vector<std::unique_ptr<Launch>> launches_;
  int64_t *nanoseconds_ = nullptr;
  volatile int64_t *progress_ = nullptr;
  int64_t first_ = 0;
};

}  // namespace kforge
#endif
