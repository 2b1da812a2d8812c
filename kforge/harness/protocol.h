// What the parent and the runner say to each other. Mirrored by control.py (layout) and zygote.py (messages).
//
// Two channels. A SOCK_SEQPACKET socket carries the slow verbs (fill the arena, fork a child, kill a child, who died); its
// messages are arrays of int64, with memory files attached. One shared page per child carries the fast verb (run n calls): the
// parent stores a command, posts a number in `posted` and sleeps until `done` holds the same.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kforge_harness {

constexpr int max_tensors = 16;
constexpr int max_rank = 8;
constexpr int max_axes = 8;
constexpr int max_scalars = 8;
constexpr int max_slots = 32;
constexpr int max_threads = 256;
constexpr size_t stack_bytes = 64 << 10;   // of a thread of a candidate, with what its launch points to; abi.h promises less
constexpr size_t stack_guard = 16 << 20;  // below it: a frame larger than a page must not step over it

// Socket messages, first word.
enum Verb : int64_t {
    // Parent to zygote.
    verb_arena = 1,  // [arena bytes, reserve bytes, n, n x (destination, source, bytes, copies, copy stride)] + source file
    verb_spawn = 2,  // [threads, cpu seconds, needed layers, file offset of the stacks, slots, slots x (address offset,
                     //   file offset, bytes, writable), threads x cpu] + control file, slot file, image file
    verb_kill = 3,   // [pid]
    verb_attempt = 4,  // [number, threads, threads x cpu] + control file: a child locked down as for a candidate tries
                       //   what a candidate must not (attempts.h) and says its name in the page's message
    // Zygote to parent.
    reply_arena = 11,  // [arena address, reserve address]
    reply_spawn = 12,  // [pid, attempts that there are]
    reply_dead = 13,   // [pid, wait status]; also without being asked
    reply_error = 14,  // [errno, which step]
};

enum State : uint32_t { starting = 0, ready = 1, dead = 2 };
enum Command : int32_t { command_run = 1, command_scratch = 2, command_touch = 3 };
enum Fault : int32_t { fault_none = 0, fault_plain = 1, fault_input = 2, fault_guard = 3, fault_stack = 4 };

struct TensorCommand {
    uint64_t address;
    int64_t copies;       // call i uses copy (first + i step) % copies
    int64_t copy_stride;  // bytes between copies
    int64_t spoil_bytes;  // of an output whose lines may be spoiled between calls; 0 otherwise. Of command_touch: of
                          //   each copy, to be read
    int64_t strides[max_rank];
};

struct Control {
    // Numbers are drawn at random: a candidate that finds this page cannot work ahead or report calls that it never made,
    // because it does not know what the next command will be called.
    alignas(64) std::atomic<uint32_t> posted;
    alignas(64) std::atomic<uint32_t> done;
    alignas(64) std::atomic<uint32_t> state;
    int32_t fault;
    int32_t signal;
    uint64_t fault_address;
    char message[128];
    alignas(64) int32_t command;
    int32_t threads;
    int32_t tensors;
    uint32_t seed;  // of what the executor does at random
    int64_t calls;
    int64_t first;
    uint64_t scratch;
    int64_t scratch_bytes;
    int64_t scratch_stride;  // calls use two areas so far apart in turn; 0: one
    int64_t result;  // of command_scratch
    int64_t axes[max_axes];
    double scalars[max_scalars];
    TensorCommand tensor[max_tensors];
    int32_t staggered;  // threads begin each call at moments of their own
    int32_t late;       // one more than the thread that begins each call when the others are through; 0: none
    int64_t step;       // not known to a candidate: which copy the next call will read is not to be told from this one's
};

// control.py counts on these.
static_assert(sizeof(Control) <= 4096, "one page");
static_assert(offsetof(Control, state) == 128 && offsetof(Control, message) == 152, "layout");
static_assert(offsetof(Control, command) == 320 && offsetof(Control, axes) == 384, "layout");
static_assert(offsetof(Control, tensor) == 512 && sizeof(TensorCommand) == 96, "layout");

}  // namespace kforge_harness
