// Runs a loaded kernel n times over a rotation of tensor copies, on the engine's own team, loader and barrier.
#pragma once

#include "protocol.h"
#include "stacks.h"

#include "float_control.h"
#include "loader.h"
#include "team.h"
#include "wait.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

namespace kforge_harness {

class Executor {
  public:
    Executor(const std::vector<int> &cpus, const Stacks &stacks)
        : pinned_(cpus[0]), team_(cpus), alone_(std::vector<int>(1, cpus[0])), stacks_(stacks) {}

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

    int64_t scratch_bytes(const Control &control) const {
        if (!kernel_.wants_scratch()) return 0;
        struct Question {
            const kforge::LoadedKernel *kernel;
            const int64_t *axes;
            int32_t threads;
            mutable int64_t answer;
        } question{&kernel_, stacks_.page(0)->axes, control.threads, 0};
        std::copy_n(control.axes, max_axes, stacks_.page(0)->axes);
        auto ask = [](const void *q) {
            auto *asked = static_cast<const Question *>(q);
            asked->answer = asked->kernel->scratch_bytes(asked->axes, asked->threads);
        };
        kf_call_on_stack(ask, &question, stacks_.start(0));
        return question.answer;
    }

    // The command is copied first: a candidate that finds the shared page could otherwise change it between two calls.
    void run(const Control &control) {
        kforge::Team &team = control.threads == 1 ? alone_ : team_;
        through_ = 0;
        Batch batch{this, &team, control.calls, control.first, control.step, std::min(control.tensors, max_tensors), {}, {}, {},
                    reinterpret_cast<char *>(control.scratch), control.scratch_bytes, control.scratch_stride, control.seed,
                    control.staggered != 0, control.late - 1};
        std::copy_n(control.tensor, batch.tensors, batch.tensor);
        std::copy_n(control.axes, max_axes, batch.axes);
        std::copy_n(control.scalars, max_scalars, batch.scalars);
        team.run([](void *b, int thread) { work(*static_cast<const Batch *>(b), thread); }, &batch);
        team.park();
    }

    // Every thread reads all of the tensors, as if its core had just been at work on them. No code of a candidate runs.
    void touch(const Control &control) {
        kforge::Team &team = control.threads == 1 ? alone_ : team_;
        team.run([](void *c, int) {
            const auto *given = static_cast<const Control *>(c);
            for (int t = 0; t < std::min(given->tensors, max_tensors); ++t) {
                const TensorCommand &tensor = given->tensor[t];
                for (int64_t copy = 0; copy < tensor.copies; ++copy) {
                    const auto *from = reinterpret_cast<const volatile char *>(tensor.address + copy * tensor.copy_stride);
                    for (int64_t byte = 0; byte < tensor.spoil_bytes; byte += 64) from[byte];
                }
            }
        }, const_cast<Control *>(&control));
        team.park();
    }

  private:
    static constexpr int64_t wiped_lines = 8192 / 64;  // per thread and call: some 50 ns
    static constexpr int patience = 20'000;            // pauses, of 10 to 140 cycles each: a fraction of a millisecond

    struct Batch {
        Executor *self;
        kforge::Team *team;
        int64_t calls, first, step;
        int32_t tensors;
        TensorCommand tensor[max_tensors];
        int64_t axes[max_axes];
        double scalars[max_scalars];
        char *scratch;
        int64_t scratch_bytes, scratch_stride;
        uint32_t seed;
        bool staggered;
        int late;  // -1: no thread
    };

    // As in the engine's program: a launch of its own per thread, floating-point control at its default before each call, a
    // full barrier after it.
    static void work(const Batch &batch, int thread) {
        const Stacks &stacks = batch.self->stacks_;
        LaunchPage &page = *stacks.page(thread);
        int64_t turn[max_tensors], step[max_tensors];
        for (int t = 0; t < batch.tensors; ++t) {
            turn[t] = batch.first % batch.tensor[t].copies;
            step[t] = batch.step % batch.tensor[t].copies;
            std::copy_n(batch.tensor[t].strides, max_rank, page.strides[t]);
            page.tensors[t].strides = page.strides[t];
        }
        std::copy_n(batch.axes, max_axes, page.axes);
        std::copy_n(batch.scalars, max_scalars, page.scalars);
        const kf_launch launch = {KFORGE_ABI_VERSION, sizeof(kf_launch), page.tensors, page.axes, page.scalars, batch.scratch,
                                  batch.scratch_bytes, thread, batch.team->threads(), &batch.team->kernel_barrier(),
                                  &kforge::Barrier::wait_on};
        // A kernel's entry is called through the form that a stack is switched with: one pointer in, nothing out.
        const auto entry = reinterpret_cast<void (*)(const void *)>(batch.self->kernel_.entry());
        void *start = stacks.start(thread);
        uint32_t lottery = batch.seed, noise = ~batch.seed;
        int64_t area = 0;                   // of the scratch, as an offset
        const int64_t calls = batch.calls;  // read once: who finds the batch may write to it
        for (int64_t call = 0; call < calls; ++call) {
            page.launch = launch;
            page.launch.scratch = batch.scratch + area;
            for (int t = 0; t < batch.tensors; ++t) {
                const TensorCommand &tensor = batch.tensor[t];
                page.tensors[t].data = reinterpret_cast<void *>(tensor.address + turn[t] * tensor.copy_stride);
                if ((turn[t] += step[t]) >= tensor.copies) turn[t] -= tensor.copies;
            }
            if (batch.staggered) stagger(batch.seed, call, thread);
            if (batch.late == thread) await_others(batch, call);
            kforge::FloatControl::defaults().write();
            batch.self->registers_.clear();
            kf_call_on_stack(entry, &page.launch, start);
            if (batch.late >= 0) ++batch.self->through_;
            // Before the barrier, so that the next call finds it; a slower thread may undo it, which only makes it rarer.
            if (thread == 0 && call + 1 < calls && (lottery = lottery * 1664525u + 1013904223u) < (1u << 30)) {
                spoil(batch, lottery);
            }
            batch.team->executor_barrier().wait();
            noise = noise * 1664525u + 1013904223u;
            if (batch.scratch_stride) {
                wipe(batch, area, thread, noise);
                area = batch.scratch_stride - area;
            } else if (batch.scratch_bytes && call + 1 < calls && noise < (1u << 28)) {
                wipe(batch, area, thread, noise);
                batch.team->executor_barrier().wait();
            }
        }
    }

    // This thread's share of an area of the scratch. With two areas nobody waits for it: the next call uses the other one, and
    // ends in a barrier before this one is used again. A second area of a large scratch would push others out of the cache: it
    // is one, wiped after a sixteenth of the calls (the same for all threads) and of each share a part, at random. More would
    // cost kernels that ask for more than they touch as much as their work.
    static void wipe(const Batch &batch, int64_t area, int thread, uint32_t random) {
        const int64_t lines = (batch.scratch_bytes + 63) / 64, threads = batch.team->threads();
        int64_t begin = lines * thread / threads, end = lines * (thread + 1) / threads;
        if (end - begin > wiped_lines) {
            begin += (random >> 2) % (end - begin - wiped_lines);
            end = begin + wiped_lines;
        }
        const int64_t bytes = std::min(64 * end, batch.scratch_bytes) - 64 * begin;
        if (bytes > 0) std::memset(batch.scratch + area + 64 * begin, 0xFF, static_cast<size_t>(bytes));
    }

    // Up to 127 pauses, as often few as many: a kernel in which one thread waits for another by luck only then shows it.
    static void stagger(uint32_t seed, int64_t call, int thread) {
        const auto mixed = (static_cast<uint32_t>(call * 64 + thread) ^ seed) * 2654435761u;
        const uint32_t most = (1u << (mixed >> 29)) - 1;
        for (uint32_t pauses = (mixed >> 8) & most; pauses; --pauses) kforge::cpu_relax();
    }

    // Until the others have left the kernel, or surely wait in it at a barrier: what they need of this thread without waiting
    // for it is then missing in whole.
    static void await_others(const Batch &batch, int64_t call) {
        const int64_t threads = batch.team->threads(), through = call * threads + threads - 1;
        for (int pauses = 0; pauses < patience && batch.self->through_ < through; ++pauses) kforge::cpu_relax();
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
    const Stacks stacks_;
    const Registers registers_;
    std::string error_;
    std::atomic<int64_t> through_{0};  // calls of threads that are done, where one is late
};

}  // namespace kforge_harness
