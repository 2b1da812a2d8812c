// A built OpenCL kernel as the runner and the isolated executor launch it: an image (image.py) of launches and a device's binary.
#pragma once

#include "api.h"
#include "gate.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace kforge_opencl {

constexpr int64_t image_magic = 0x314C434F464B;  // "KFOCL1"
constexpr int most_dimensions = 3;
// Groups in x and in y and z together of a launch, at most: a driver that keeps one version of a kernel for small grids and one for
// large ones is shown so many before any candidate runs, and afterwards has the one for large grids.
constexpr size_t most_groups = 1 << 20;

// 64-bit words that are read in order; everything about them is checked, as everything about an image is.
class Words {
  public:
    Words(const void *data, size_t bytes) : data_(static_cast<const uint8_t *>(data)), bytes_(bytes) {}

    int64_t next() {
        int64_t value = 0;
        if (at_ + 8 > bytes_) return fail();
        std::memcpy(&value, data_ + at_, 8);
        at_ += 8;
        return value;
    }

    int64_t below(int64_t limit) {
        const int64_t value = next();
        return value >= 0 && value < limit ? value : fail();
    }

    std::string text() {
        const auto size = static_cast<size_t>(below(256));
        if (at_ + (size + 7) / 8 * 8 > bytes_) return fail(), "";
        std::string found(reinterpret_cast<const char *>(data_ + at_), size);
        at_ += (size + 7) / 8 * 8;
        return found;
    }

    const uint8_t *block(int64_t offset, int64_t size) {
        if (offset < 0 || size < 0 || static_cast<size_t>(offset) > bytes_ || static_cast<size_t>(size) > bytes_ - offset) {
            fail();
            return nullptr;
        }
        return data_ + offset;
    }

    bool good() const { return good_; }

  private:
    int64_t fail() {
        good_ = false;
        return 0;
    }

    const uint8_t *data_;
    size_t bytes_, at_ = 0;
    bool good_ = true;
};

// An integer expression over a kernel's axes, as steps of a stack machine; division as Python's, rounded down.
class Expression {
  public:
    void read(Words &words) {
        steps_.resize(static_cast<size_t>(words.below(512)));
        for (Step &step : steps_) {
            step.what = words.below(11);
            step.value = words.next();
        }
    }

    // 0 where it has no value: a division by zero, or more steps than operands.
    int64_t value(const int64_t *axes, int64_t count) const {
        std::vector<int64_t> stack;
        stack.reserve(steps_.size());
        for (const Step &step : steps_) {
            if (step.what == 0) {
                stack.push_back(step.value);
            } else if (step.what == 1) {
                if (step.value < 0 || step.value >= count) return 0;
                stack.push_back(axes[step.value]);
            } else if (step.what == 10) {
                if (stack.empty()) return 0;
                stack.back() = -stack.back();
            } else {
                if (stack.size() < 2) return 0;
                const int64_t b = stack.back();
                stack.pop_back();
                int64_t &a = stack.back();
                switch (step.what) {
                    case 2: a = a + b; break;
                    case 3: a = a - b; break;
                    case 4: a = a * b; break;
                    case 5: if (b == 0) return 0; a = down(a, b); break;
                    case 6: if (b == 0) return 0; a = a - b * down(a, b); break;
                    case 7: a = std::min(a, b); break;
                    case 8: a = std::max(a, b); break;
                    default: if (b == 0) return 0; a = -down(-a, b);
                }
            }
        }
        return stack.size() == 1 ? stack[0] : 0;
    }

  private:
    struct Step {
        int64_t what, value;
    };
    static int64_t down(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

    std::vector<Step> steps_;
};

// A device with a queue, and memory of this process as its buffers. The device must share this process's memory.
class Device {
  public:
    // What is wrong, or "". Threads: of a device that is the host's processor.
    std::string open(size_t number, int threads) {
        setenv("POCL_MAX_PTHREAD_COUNT", std::to_string(threads).c_str(), 1);
        setenv("POCL_CACHE_DIR", "cache", 1);  // below the current folder: where the driver unpacks a binary
        setenv("HOME", "cache", 1);
        setenv("POCL_WORK_GROUP_SPECIALIZATION", "0", 1);  // one version of a kernel for all grids: what the binary has
        if (std::string wrong = api.load(); !wrong.empty()) return wrong;
        const std::vector<Handle> all = api.devices();
        if (number >= all.size()) return "there is no OpenCL device " + std::to_string(number) + " here";
        device = all[number];
        Status status = 0;
        context = api.CreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
        if (status == 0) queue = api.CreateCommandQueue(context, device, 0, &status);
        return status == 0 ? "" : "the OpenCL device gives no queue: error " + std::to_string(status);
    }

    bool opened() const { return queue != nullptr; }

    void add_memory(uintptr_t begin, size_t bytes, bool writable) {
        if (bytes) memory_[begin] = {bytes, writable};
    }

    // The memory from `address` to the end of what it lies in; null outside.
    Handle buffer(uintptr_t address) {
        if (auto known = buffers_.find(address); known != buffers_.end()) return known->second;
        auto after = memory_.upper_bound(address);
        if (after == memory_.begin()) return nullptr;
        const auto &[begin, range] = *--after;
        if (address >= begin + range.bytes) return nullptr;
        if (buffers_.size() >= most_buffers) forget();
        Status status = 0;
        const uint64_t flags = memory_host_pointer | (range.writable ? memory_read_write : memory_read_only);
        Handle made = api.CreateBuffer(context, flags, begin + range.bytes - address, reinterpret_cast<void *>(address), &status);
        if (status != 0) return nullptr;
        return buffers_[address] = made;
    }

    Api api;
    Handle device = nullptr, context = nullptr, queue = nullptr;

  private:
    static constexpr size_t most_buffers = 8192;
    struct Range {
        size_t bytes;
        bool writable;
    };

    void forget() {
        api.Finish(queue);
        for (const auto &[address, handle] : buffers_) api.ReleaseMemObject(handle);
        buffers_.clear();
    }

    std::map<uintptr_t, Range> memory_;
    std::unordered_map<uintptr_t, Handle> buffers_;
};

struct TensorView {
    uintptr_t address;
    const int64_t *strides;  // in elements
};

class Kernel {
  public:
    // What is wrong with the image, or "". Opens the device that the image is for when it is not open.
    std::string load(Device &device, const void *data, size_t bytes, int threads) {
        device_ = &device;
        Words words(data, bytes);
        if (words.next() != image_magic) return "it is no OpenCL kernel";
        const auto number = static_cast<size_t>(words.below(1 << 16));
        const int64_t offset = words.next(), size = words.next();
        const uint8_t *binary = words.block(offset, size);
        launches_.resize(static_cast<size_t>(words.below(9)));
        for (Launch &launch : launches_) launch.read(words);
        if (!words.good()) return "its image is damaged";
        if (!device.opened()) {
            if (std::string wrong = device.open(number, threads); !wrong.empty()) return wrong;
        }
        return build(binary, static_cast<size_t>(size));
    }

    // Has the driver do with every launch what it does the first time; `address`: any memory of the device's.
    std::string warm(uintptr_t address) {
        for (const Launch &launch : launches_) {
            for (size_t i = 0; i < launch.arguments.size(); ++i) {
                const Argument &argument = launch.arguments[i];
                const bool pointer = argument.kind == Kind::tensor || argument.kind == Kind::scratch;
                if (Status status = pointer ? set_pointer(launch, i, address) : set_zero(launch, i, argument.kind)) {
                    return wrong(launch, "takes other arguments than its launch says (number " + std::to_string(i) + ")", status);
                }
            }
            const size_t global[most_dimensions] = {most_groups * launch.block[0], launch.block[1], launch.block[2]};
            Status status = device_->api.EnqueueNDRangeKernel(device_->queue, launch.kernel, most_dimensions, nullptr, global,
                                                              launch.block, 0, nullptr, nullptr);
            if (status != 0) return wrong(launch, "cannot be launched", status);
            if ((status = device_->api.Finish(device_->queue)) != 0) return wrong(launch, "cannot be loaded", status);
            if (gates == 0) return wrong(launch, "was not loaded through a gate: its driver is not PoCL's", 0);
        }
        return "";
    }

    int64_t scratch_bytes(const int64_t *axes, int64_t count) const {
        int64_t most = 0;
        for (const Launch &launch : launches_) most = std::max(most, launch.scratch.value(axes, count));
        return most;
    }

    // Queues the kernel's launches, in order. Not 0: OpenCL's error, or `outside` for what is not in the device's memory.
    Status enqueue(const TensorView *tensors, size_t tensor_count, const int64_t *axes, int64_t axis_count, const double *scalars,
                   size_t scalar_count, uintptr_t scratch) {
        for (const Launch &launch : launches_) {
            size_t global[most_dimensions];
            bool empty = false;
            for (int i = 0; i < most_dimensions; ++i) {
                const int64_t groups = std::max<int64_t>(launch.grid[i].value(axes, axis_count), 0);
                if (groups > static_cast<int64_t>(most_groups)) return outside;
                empty = empty || groups == 0;
                global[i] = static_cast<size_t>(groups) * launch.block[i];
            }
            if (empty) continue;  // nothing to do is no launch: not every driver survives one
            if (global[1] > most_groups || global[2] > most_groups || global[0] > most_groups * launch.block[0]) return outside;
            for (size_t i = 0; i < launch.arguments.size(); ++i) {
                const Argument &argument = launch.arguments[i];
                const auto index = static_cast<size_t>(argument.index);
                Status status = outside;
                if (argument.kind == Kind::tensor && index < tensor_count) {
                    status = set_pointer(launch, i, tensors[index].address);
                } else if (argument.kind == Kind::stride && index < tensor_count) {
                    status = set(launch, i, tensors[index].strides[argument.dimension]);
                } else if (argument.kind == Kind::axis && argument.index < axis_count) {
                    status = set(launch, i, static_cast<int32_t>(axes[index]));
                } else if (argument.kind == Kind::scalar && index < scalar_count) {
                    status = set(launch, i, static_cast<float>(scalars[index]));
                } else if (argument.kind == Kind::scratch) {
                    status = scratch ? set_pointer(launch, i, scratch) : set_null(launch, i);
                }
                if (status != 0) return status;
            }
            if (Status status = device_->api.EnqueueNDRangeKernel(device_->queue, launch.kernel, most_dimensions, nullptr, global,
                                                                  launch.block, 0, nullptr, nullptr)) {
                return status;
            }
        }
        return 0;
    }

    Status finish() { return device_->api.Finish(device_->queue); }

  private:
    static constexpr Status outside = -10000;
    enum class Kind : int64_t { tensor = 0, stride = 1, axis = 2, scalar = 3, scratch = 4 };
    struct Argument {
        Kind kind;
        int64_t index, dimension;
    };
    struct Launch {
        std::string entry;
        size_t block[most_dimensions];
        Expression grid[most_dimensions], scratch;
        std::vector<Argument> arguments;
        Handle kernel = nullptr;

        void read(Words &words) {
            entry = words.text();
            for (size_t &size : block) size = static_cast<size_t>(words.below(1 << 16));
            for (Expression &size : grid) size.read(words);
            scratch.read(words);
            arguments.resize(static_cast<size_t>(words.below(64)));
            for (Argument &argument : arguments) {
                argument.kind = static_cast<Kind>(words.below(5));
                argument.index = words.below(64);
                argument.dimension = words.below(8);
            }
        }
    };

    std::string build(const uint8_t *binary, size_t size) {
        Status status = 0, of_binary = 0;
        const Api &api = device_->api;
        Handle program = api.CreateProgramWithBinary(device_->context, 1, &device_->device, &size, &binary, &of_binary, &status);
        if (status == 0) status = api.BuildProgram(program, 1, &device_->device, "", nullptr, nullptr);
        if (status != 0) return "the device refuses the binary: error " + std::to_string(status);
        for (Launch &launch : launches_) {
            launch.kernel = api.CreateKernel(program, launch.entry.c_str(), &status);
            if (status != 0) return wrong(launch, "is not in the binary", status);
            uint32_t count = 0;
            api.GetKernelInfo(launch.kernel, kernel_arguments, sizeof count, &count, nullptr);
            if (count != launch.arguments.size()) {
                return "kernel " + launch.entry + " has " + std::to_string(count) + " arguments, its launch " +
                       std::to_string(launch.arguments.size());
            }
        }
        return "";
    }

    static std::string wrong(const Launch &launch, const std::string &what, Status status) {
        return "kernel " + launch.entry + " " + what + ": error " + std::to_string(status);
    }

    template <class T>
    Status set(const Launch &launch, size_t i, T value) {
        return device_->api.SetKernelArg(launch.kernel, static_cast<uint32_t>(i), sizeof value, &value);
    }

    Status set_pointer(const Launch &launch, size_t i, uintptr_t address) {
        Handle buffer = device_->buffer(address);
        return buffer == nullptr ? outside : set(launch, i, buffer);
    }

    Status set_null(const Launch &launch, size_t i) {
        return device_->api.SetKernelArg(launch.kernel, static_cast<uint32_t>(i), sizeof(Handle), nullptr);
    }

    Status set_zero(const Launch &launch, size_t i, Kind kind) {
        if (kind == Kind::stride) return set(launch, i, int64_t{0});
        return kind == Kind::axis ? set(launch, i, int32_t{0}) : set(launch, i, 0.0f);
    }

    Device *device_ = nullptr;
    std::vector<Launch> launches_;
};

}  // namespace kforge_opencl
