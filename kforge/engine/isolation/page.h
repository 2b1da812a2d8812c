// What the engine and its isolated executor share beside tensors: one command at a time, and what came of it.
// Mirrored by page.py.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kforge_engine {

enum State : uint32_t { starting = 0, ready = 1, dead = 2 };
enum Command : int32_t { command_run = 1, command_profile = 2 };

constexpr int64_t max_launches = 8000;

struct Page {
    alignas(64) std::atomic<uint32_t> posted;
    alignas(64) std::atomic<uint32_t> done;
    alignas(64) std::atomic<uint32_t> state;
    int32_t signal;        // of a fault
    uint64_t address;      // where it was
    volatile int64_t launch;  // that thread 0 began last
    char message[128];     // why it did not start
    alignas(64) int32_t command;
    int32_t program;
    int32_t core;  // of thread 0
    int32_t reserved;
    int64_t result;  // -1, or the launch that wants more scratch than there is
    int64_t nanoseconds[max_launches];
};

constexpr size_t page_bytes = 1 << 16;

// page.py counts on these.
static_assert(sizeof(Page) <= page_bytes, "size");
static_assert(offsetof(Page, state) == 128 && offsetof(Page, message) == 152, "layout");
static_assert(offsetof(Page, command) == 320 && offsetof(Page, nanoseconds) == 344, "layout");

}  // namespace kforge_engine
