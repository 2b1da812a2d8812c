// Kernels of an executor that has an OpenCL device beside its team of threads: in one program either runs what it has kernels for,
// on the same memory, one after the other.
#pragma once

#include "confined.h"
#include "kernel.h"
#include "native_steps.h"
#include "wait.h"

namespace kforge_engine::device {

using kforge_engine::Memory;

class Kernels {
  public:
    explicit Kernels(kforge::Team &team) : threads_(team.threads()), native_(team) {}

    // The first of them stands in for any while a device's kernels are loaded.
    void add_memory(const Memory &memory) {
        if (anywhere_ == 0) anywhere_ = reinterpret_cast<uintptr_t>(memory.begin);
        device_.add_memory(reinterpret_cast<uintptr_t>(memory.begin), memory.bytes, memory.writable);
    }

    std::string load(const void *image, size_t bytes) {
        int64_t magic = 0;
        if (bytes >= sizeof magic) std::memcpy(&magic, image, sizeof magic);
        if (magic != kforge_opencl::image_magic) {
            places_.push_back({false, native_.size()});
            return native_.load(image, bytes);
        }
        places_.push_back({true, kernels_.size()});
        kernels_.push_back(std::make_unique<kforge_opencl::Kernel>());
        std::string wrong = kernels_.back()->load(device_, image, bytes, threads_);
        return wrong.empty() ? kernels_.back()->warm(anywhere_) : wrong;
    }

    size_t size() const { return places_.size(); }
    bool on_device(size_t index) const { return places_[index].device; }
    const kforge::LoadedKernel &native(size_t index) const { return native_.at(places_[index].index); }
    kforge_opencl::Kernel &device(size_t index) const { return *kernels_[places_[index].index]; }

  private:
    struct Place {
        bool device;
        size_t index;
    };
    const int threads_;
    uintptr_t anywhere_ = 0;
    native::Kernels native_;
    kforge_opencl::Device device_;
    std::vector<std::unique_ptr<kforge_opencl::Kernel>> kernels_;
    std::vector<Place> places_;
};

class Steps {
  public:
    Steps(kforge::Team &team, Kernels &kernels, const Memory &scratch, volatile int64_t *progress)
        : team_(team), kernels_(kernels), scratch_(scratch), progress_(progress) {}

    void add(size_t kernel, std::vector<kforge::TensorArgument> tensors, const int64_t *axes, const double *scalars) {
        if (kernels_.on_device(kernel)) {
            parts_.push_back({count_++, nullptr, &kernels_.device(kernel), std::move(tensors), axes, scalars});
            return;
        }
        if (parts_.empty() || !parts_.back().native) {
            parts_.push_back({count_, std::make_unique<kforge::Program>(team_), nullptr, {}, nullptr, nullptr});
            parts_.back().native->report_progress(progress_, count_);
        }
        kforge::Program &program = *parts_.back().native;
        const int64_t index = program.add(kernels_.native(kernel), std::move(tensors), axes, scalars);
        if (kernels_.native(kernel).wants_scratch()) {
            program.set_scratch(index, scratch_.begin, static_cast<int64_t>(scratch_.bytes));
        }
        ++count_;
    }

    int64_t run() { return replay(nullptr); }
    int64_t profile(int64_t *nanoseconds) { return replay(nanoseconds); }

  private:
    struct Part {
        int64_t first;  // launch
        std::unique_ptr<kforge::Program> native;
        kforge_opencl::Kernel *device;
        std::vector<kforge::TensorArgument> tensors;
        const int64_t *axes;
        const double *scalars;
    };

    // kDone, or the launch that wants more scratch than there is. A device that refuses a launch ends the process.
    int64_t replay(int64_t *nanoseconds) {
        for (Part &part : parts_) {
            if (part.native) {
                const int64_t lacking = nanoseconds ? part.native->profile(nanoseconds + part.first) : part.native->run();
                if (lacking != kforge::Program::kDone) return part.first + lacking;
                team_.park();  // threads that wait by spinning would be in the device's way
                continue;
            }
            const int64_t start = nanoseconds ? kforge::now_ns() : 0;
            *progress_ = part.first;
            if (!launch(part)) return part.first;
            if (nanoseconds) nanoseconds[part.first] = kforge::now_ns() - start;
        }
        return kforge::Program::kDone;
    }

    bool launch(Part &part) {
        // How many axes and scalars there are is the operator's affair, and its kernels were checked to name no others.
        constexpr int64_t most = 8;
        const int64_t wanted = part.device->scratch_bytes(part.axes, most);
        if (wanted > static_cast<int64_t>(scratch_.bytes)) return false;
        std::vector<kforge_opencl::TensorView> views(part.tensors.size());
        for (size_t i = 0; i < views.size(); ++i) {
            views[i] = {reinterpret_cast<uintptr_t>(part.tensors[i].data), part.tensors[i].strides.data()};
        }
        const uintptr_t scratch = wanted > 0 ? reinterpret_cast<uintptr_t>(scratch_.begin) : 0;
        kforge_opencl::Status status =
            part.device->enqueue(views.data(), views.size(), part.axes, most, part.scalars, most, scratch);
        if (status == 0) status = part.device->finish();
        if (status != 0) std::abort();
        return true;
    }

    kforge::Team &team_;
    Kernels &kernels_;
    const Memory scratch_;
    volatile int64_t *progress_;
    int64_t count_ = 0;
    std::vector<Part> parts_;
};

}  // namespace kforge_engine::device
