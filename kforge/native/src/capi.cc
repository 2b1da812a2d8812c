// C functions for Python's ctypes. Handles are pointers; errors come back as codes and one sentence.
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "loader.h"
#include "memory.h"
#include "program.h"
#include "team.h"

namespace {

void say(char *error, int64_t size, const std::string &text) {
  if (size > 0) std::snprintf(error, static_cast<std::size_t>(size), "%s", text.c_str());
}

}  // namespace

extern "C" {

// `cores` has one entry per thread; null chooses.
void *kf_team_new(int32_t threads, const int32_t *cores, char *error, int64_t error_size) {
  try {
    const std::vector<int> chosen = cores == nullptr ? kforge::default_cores(threads)
                                                     : std::vector<int>(cores, cores + threads);
    return new kforge::Team(chosen);
  } catch (const std::exception &e) {
    say(error, error_size, e.what());
    return nullptr;
  }
}
void kf_team_delete(void *team) { delete static_cast<kforge::Team *>(team); }
void kf_team_park(void *team) { static_cast<kforge::Team *>(team)->park(); }

// Pins the calling thread to the team's first core until kf_unpin, on the same thread.
void *kf_team_pin(void *team) { return new kforge::PinnedScope(static_cast<kforge::Team *>(team)->core(0)); }
void kf_unpin(void *scope) { delete static_cast<kforge::PinnedScope *>(scope); }
int32_t kf_team_core(void *team, int32_t thread) { return static_cast<kforge::Team *>(team)->core(thread); }

// Nanoseconds for `rounds` barriers on the whole team.
int64_t kf_team_time_barriers(void *handle, int64_t rounds) {
  struct Context {
    kforge::Team *team;
    int64_t rounds;
  } context{static_cast<kforge::Team *>(handle), rounds};
  const kforge::PinnedScope pinned(context.team->core(0));
  const int64_t start = kforge::now_ns();
  context.team->run(
      [](void *c, int) {
        auto *given = static_cast<Context *>(c);
        for (int64_t i = 0; i < given->rounds; ++i) given->team->kernel_barrier().wait();
      },
      &context);
  return kforge::now_ns() - start;
}

void *kf_kernel_load(const uint8_t *blob, int64_t bytes, char *error, int64_t error_size) {
  auto *kernel = new kforge::LoadedKernel;
  std::string problem;
  if (kernel->load(blob, static_cast<std::size_t>(bytes), &problem)) return kernel;
  say(error, error_size, problem);
  delete kernel;
  return nullptr;
}
void kf_kernel_delete(void *kernel) { delete static_cast<kforge::LoadedKernel *>(kernel); }
int64_t kf_kernel_scratch_bytes(void *kernel, const int64_t *axes, int32_t threads) {
  return static_cast<kforge::LoadedKernel *>(kernel)->scratch_bytes(axes, threads);
}
const void *kf_kernel_base(void *kernel) { return static_cast<kforge::LoadedKernel *>(kernel)->base(); }
int64_t kf_kernel_bytes(void *kernel) {
  return static_cast<int64_t>(static_cast<kforge::LoadedKernel *>(kernel)->bytes());
}

void *kf_program_new(void *team) { return new kforge::Program(*static_cast<kforge::Team *>(team)); }
void kf_program_delete(void *program) { delete static_cast<kforge::Program *>(program); }

// `ranks` and `strides`: dimensions of each tensor, and all strides one after another.
int64_t kf_program_add(void *program, void *kernel, int64_t tensors, void *const *data, const int64_t *ranks,
                       const int64_t *strides, const int64_t *axes, const double *scalars) {
  std::vector<kforge::TensorArgument> arguments;
  for (int64_t i = 0; i < tensors; ++i) {
    arguments.push_back({data[i], std::vector<int64_t>(strides, strides + ranks[i])});
    strides += ranks[i];
  }
  return static_cast<kforge::Program *>(program)->add(*static_cast<kforge::LoadedKernel *>(kernel),
                                                      std::move(arguments), axes, scalars);
}
void kf_program_set_scratch(void *program, int64_t launch, void *scratch, int64_t bytes) {
  static_cast<kforge::Program *>(program)->set_scratch(launch, scratch, bytes);
}
int64_t kf_program_run(void *handle) {
  auto *program = static_cast<kforge::Program *>(handle);
  const kforge::PinnedScope pinned(program->team().core(0));
  return program->run();
}
// `nanoseconds` has replays x launches entries.
int64_t kf_program_profile(void *handle, int64_t replays, int64_t *nanoseconds) {
  auto *program = static_cast<kforge::Program *>(handle);
  const kforge::PinnedScope pinned(program->team().core(0));
  for (int64_t i = 0; i < replays; ++i) {
    const int64_t status = program->profile(nanoseconds + i * program->size());
    if (status != kforge::Program::kDone) return status;
  }
  return kforge::Program::kDone;
}
int64_t kf_program_calls(void *program, int64_t launch) {
  return static_cast<kforge::Program *>(program)->calls(launch);
}

void *kf_map_huge(int64_t bytes) { return kforge::map_huge(static_cast<std::size_t>(bytes)); }
// Shared and writable; huge pages are a wish.
void *kf_map_shared(int32_t file, int64_t bytes) {
  void *memory = kforge::map_shared(file, static_cast<std::size_t>(bytes), true);
  if (memory != nullptr) kforge::make_huge(memory, static_cast<std::size_t>(bytes));
  return memory;
}
void kf_unmap_huge(void *memory, int64_t bytes) { kforge::unmap_huge(memory, static_cast<std::size_t>(bytes)); }

}  // extern "C"
