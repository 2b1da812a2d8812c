// Runs a built OpenCL kernel n times over a rotation of tensor copies: what executor.h is to native kernels, for the same child.
//
// The device's threads are the driver's own. They exist, and the kernel is loaded, before the system call filter is in place; from
// then on the gates are open and the driver needs no call but futex.
#pragma once

#include "confined.h"
#include "kernel.h"
#include "protocol.h"
#include "stacks.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sched.h>

namespace kforge_harness {

class Executor {
  public:
    Executor(const std::vector<int> &cpus, const Stacks &) : threads_(static_cast<int>(cpus.size())) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int cpu : cpus) CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof set, &set);  // the driver's threads inherit it
        kforge_opencl::steady_heap();
    }

    void add_memory(uintptr_t begin, uintptr_t end, bool writable) { device_.add_memory(begin, end - begin, writable); }

    // What is wrong with the image, or null. `anywhere`: memory that stands in for every tensor while nothing runs.
    const char *load(const void *blob, size_t bytes, uintptr_t anywhere) {
        error_ = kernel_.load(device_, blob, bytes, threads_);
        if (error_.empty()) error_ = kernel_.warm(anywhere);
        kforge_opencl::fill_heap();
        return error_.empty() ? nullptr : error_.c_str();
    }

    void on_every_thread(void (*function)()) { function(); }
    void on_last_thread(void (*function)()) { function(); }
    void unlock() { kforge_opencl::open_gates(); }

    int64_t scratch_bytes(const Control &control) const { return kernel_.scratch_bytes(control.axes, max_axes); }

    // Each call is handed to the device when the one before has ended, as in the engine: what that costs is in its time. The
    // command is copied first: a candidate that finds the shared page could otherwise change it between two calls.
    void run(const Control &posted) {
        const Control &control = *static_cast<const Control *>(std::memcpy(&command_, &posted, sizeof posted));
        const int32_t tensors = std::min(std::max(control.tensors, 0), max_tensors);
        kforge_opencl::TensorView views[max_tensors];
        int64_t turn[max_tensors], step[max_tensors];
        for (int t = 0; t < tensors; ++t) {
            turn[t] = control.first % control.tensor[t].copies;
            step[t] = control.step % control.tensor[t].copies;
            views[t].strides = control.tensor[t].strides;
        }
        uint32_t lottery = control.seed, noise = ~control.seed;
        int64_t area = 0;
        for (int64_t call = 0; call < control.calls; ++call) {
            for (int t = 0; t < tensors; ++t) {
                const TensorCommand &tensor = control.tensor[t];
                views[t].address = tensor.address + static_cast<uint64_t>(turn[t] * tensor.copy_stride);
                if ((turn[t] += step[t]) >= tensor.copies) turn[t] -= tensor.copies;
            }
            const uintptr_t scratch = control.scratch ? control.scratch + static_cast<uint64_t>(area) : 0;
            kforge_opencl::Status status = kernel_.enqueue(views, static_cast<size_t>(tensors), control.axes, max_axes,
                                                           control.scalars, max_scalars, scratch);
            if (status == 0) status = kernel_.finish();
            if (status != 0) _exit(device_exit);
            if (call + 1 < control.calls && (lottery = lottery * 1664525u + 1013904223u) < (1u << 30)) spoil(control, tensors, lottery);
            noise = noise * 1664525u + 1013904223u;
            if (control.scratch_stride) {
                wipe(control, area, noise);
                area = control.scratch_stride - area;
            } else if (control.scratch_bytes && call + 1 < control.calls && noise < (1u << 28)) {
                wipe(control, area, noise);
            }
        }
    }

    void touch(const Control &control) {
        for (int t = 0; t < std::min(control.tensors, max_tensors); ++t) {
            const TensorCommand &tensor = control.tensor[t];
            for (int64_t copy = 0; copy < tensor.copies; ++copy) {
                const auto *from = reinterpret_cast<const volatile char *>(tensor.address + copy * tensor.copy_stride);
                for (int64_t byte = 0; byte < tensor.spoil_bytes; byte += 64) from[byte];
            }
        }
    }

  private:
    static constexpr int64_t wiped_bytes = 16384;
    static constexpr int device_exit = 95;  // the device refused a launch; zygote.py knows it

    // As executor.h: nothing that a call leaves in its scratch or its outputs can be relied on.
    static void wipe(const Control &control, int64_t area, uint32_t random) {
        int64_t begin = 0, end = control.scratch_bytes;
        if (end > wiped_bytes) {
            begin = (random >> 2) % (end - wiped_bytes);
            end = begin + wiped_bytes;
        }
        std::memset(reinterpret_cast<char *>(control.scratch) + area + begin, 0xFF, static_cast<size_t>(end - begin));
    }

    static void spoil(const Control &control, int32_t tensors, uint32_t random) {
        for (int t = 0; t < tensors; ++t) {
            const TensorCommand &tensor = control.tensor[t];
            if (tensor.spoil_bytes < 64) continue;
            const uint64_t line = (random >> 4) % static_cast<uint64_t>(tensor.spoil_bytes / 64);
            std::memset(reinterpret_cast<void *>(tensor.address + 64 * line), 0xFF, 64);
        }
    }

    const int threads_;
    kforge_opencl::Device device_;
    kforge_opencl::Kernel kernel_;
    std::string error_;
    // As bytes: the page's counters are atomic and need not be copied as such.
    alignas(64) unsigned char command_[sizeof(Control)];
};

}  // namespace kforge_harness
