// Runs a loaded kernel n times over a rotation of tensor copies, on the engine's own team, loader and barrier.
#pragma once

#include "protocol.h"

#include "float_control.h"
#include "loader.h"
#include "team.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace kforge_harness {

class Executor {
  public:
    explicit Executor(const std::vector<int> &cpus)
        : pinned_(cpus[0]), team_(cpus), alone_(std::vector<int>(1, cpus[0])) {}

    // What is wrong with the image, or null.
    const char *load(const void *blob, size_t bytes) {
        return kernel_.load(static_cast<const uint8_t *>(blob), bytes, &error_) ? nullptr : error_.c_str();
    }

    void on_every_thread(void (*function)()) {
        team_.run([](void *f, int) { reinterpret_cast<void (*)()>(f)(); }, reinterpret_cast<void *>(function));
    }

    // On a thread that the system call filter reached through its synchronisation, where there is more than one.
    void on_last_thread(void (*function)()) {
        struct Context {
            void (*function)();
            int last;
        } context{function, team_.threads() - 1};
        team_.run([](void *c, int thread) {
            auto *given = static_cast<Context *>(c);
            if (thread == given->last) given->function();
        }, &context);
    }

    int64_t scratch_bytes(const Control &control) const { return kernel_.scratch_bytes(control.axes, control.threads); }

    // The command is copied first: a candidate that finds the shared page could otherwise change it between two calls.
    void run(const Control &control) {
        kforge::Team &team = control.threads == 1 ? alone_ : team_;
        Batch batch{this, &team, control.calls, control.first, std::min(control.tensors, max_tensors), {}, {}, {},
                    reinterpret_cast<void *>(control.scratch), control.scratch_bytes, control.seed};
        std::copy_n(control.tensor, batch.tensors, batch.tensor);
        std::copy_n(control.axes, max_axes, batch.axes);
        std::copy_n(control.scalars, max_scalars, batch.scalars);
        team.run([](void *b, int thread) { work(*static_cast<const Batch *>(b), thread); }, &batch);
        team.park();
    }

  private:
    struct Batch {
        Executor *self;
        kforge::Team *team;
        int64_t calls, first;
        int32_t tensors;
        TensorCommand tensor[max_tensors];
        int64_t axes[max_axes];
        double scalars[max_scalars];
        void *scratch;
        int64_t scratch_bytes;
        uint32_t seed;
    };

    // As in the engine's program: a launch of its own per thread, floating-point control at its default before each call, a
    // full barrier after it.
    static void work(const Batch &batch, int thread) {
        kf_tensor tensors[max_tensors];
        int64_t turn[max_tensors];
        for (int t = 0; t < batch.tensors; ++t) {
            turn[t] = batch.first % batch.tensor[t].copies;
            tensors[t].strides = batch.tensor[t].strides;
        }
        kf_launch launch = {KFORGE_ABI_VERSION, sizeof(kf_launch), tensors, batch.axes, batch.scalars, batch.scratch,
                            batch.scratch_bytes, thread, batch.team->threads(), &batch.team->kernel_barrier(),
                            &kforge::Barrier::wait_on};
        uint32_t lottery = batch.seed;
        const kforge::KernelEntry entry = batch.self->kernel_.entry();
        const int64_t calls = batch.calls;  // the axes that the kernel is given lie beside it: never read again
        for (int64_t call = 0; call < calls; ++call) {
            for (int t = 0; t < batch.tensors; ++t) {
                const TensorCommand &tensor = batch.tensor[t];
                tensors[t].data = reinterpret_cast<void *>(tensor.address + turn[t] * tensor.copy_stride);
                if (++turn[t] == tensor.copies) turn[t] = 0;
            }
            kforge::FloatControl::defaults().write();
            entry(&launch);
            // Before the barrier, so that the next call finds it; a slower thread may undo it, which only makes it rarer.
            if (thread == 0 && call + 1 < calls && (lottery = lottery * 1664525u + 1013904223u) < (1u << 30)) {
                spoil(batch, lottery);
            }
            batch.team->executor_barrier().wait();
        }
    }

    // Overwrites one line of each output, at random. A kernel that takes its output as done because an earlier call has
    // written it is then wrong in the output that the parent looks at.
    static void spoil(const Batch &batch, uint32_t random) {
        for (int t = 0; t < batch.tensors; ++t) {
            const TensorCommand &tensor = batch.tensor[t];
            if (tensor.spoil_bytes < 64) continue;
            uint64_t line = (random >> 4) % static_cast<uint64_t>(tensor.spoil_bytes / 64);
            std::memset(reinterpret_cast<void *>(tensor.address + 64 * line), 0xFF, 64);
        }
    }

    kforge::PinnedScope pinned_;
    kforge::Team team_, alone_;
    kforge::LoadedKernel kernel_;
    std::string error_;
};

}  // namespace kforge_harness
