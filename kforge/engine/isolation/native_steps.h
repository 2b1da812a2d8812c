// Kernels of an executor that runs native kernels only, and programs of them.
#pragma once

#include "loader.h"
#include "program.h"

#include <memory>
#include <string>
#include <vector>

namespace kforge_engine {

// Memory that kernels may be given, and what they need of it.
struct Memory {
    char *begin;
    size_t bytes;
    bool writable;
};

namespace native {

class Kernels {
  public:
    explicit Kernels(kforge::Team &) {}
    void add_memory(const Memory &) {}
    std::string load(const void *image, size_t bytes) {
        kernels_.push_back(std::make_unique<kforge::LoadedKernel>());
        std::string error;
        return kernels_.back()->load(static_cast<const uint8_t *>(image), bytes, &error) ? "" : error;
    }
    size_t size() const { return kernels_.size(); }
    const kforge::LoadedKernel &at(size_t index) const { return *kernels_[index]; }

  private:
    std::vector<std::unique_ptr<kforge::LoadedKernel>> kernels_;
};

class Steps {
  public:
    Steps(kforge::Team &team, Kernels &kernels, const Memory &scratch, volatile int64_t *progress)
        : kernels_(kernels), scratch_(scratch), program_(team) {
        program_.report_progress(progress);
    }

    void add(size_t kernel, std::vector<kforge::TensorArgument> tensors, const int64_t *axes, const double *scalars) {
        const int64_t index = program_.add(kernels_.at(kernel), std::move(tensors), axes, scalars);
        if (kernels_.at(kernel).wants_scratch()) {
            program_.set_scratch(index, scratch_.begin, static_cast<int64_t>(scratch_.bytes));
        }
    }

    int64_t run() { return program_.run(); }
    int64_t profile(int64_t *nanoseconds) { return program_.profile(nanoseconds); }

  private:
    Kernels &kernels_;
    const Memory scratch_;
    kforge::Program program_;
};

}  // namespace native
}  // namespace kforge_engine
