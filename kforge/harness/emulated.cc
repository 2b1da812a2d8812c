// kforge-child: one candidate's process by itself, for an emulator that runs it in a confined process (emulation.py).
//
// The same child as the runner forks, without a zygote: no inputs but those in its slots, and so no timing. What keeps a
// candidate in is around the emulator; the layers that a child puts on itself are tried, and not counted on.
// Usage: kforge-child CONTROL SLOTS IMAGE SECONDS STACKS RESERVE N N*(ADDRESS FILE BYTES WRITABLE) CPU...; the first three are
// inherited descriptors. The address of the reserved range is left in the page's result.

#include "child.h"

int main(int argc, char **argv) {
    using namespace kforge_harness;
    std::vector<int64_t> word;
    for (int i = 1; i < argc; ++i) word.push_back(std::strtoll(argv[i], nullptr, 10));
    if (word.size() < 8 || word.size() < 8 + 4 * static_cast<size_t>(word[6])) return 64;
    const auto reserve_bytes = static_cast<size_t>(word[5]);
    void *reserve = mmap(nullptr, reserve_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, static_cast<int>(word[0]), 0);
    if (reserve == MAP_FAILED || page == MAP_FAILED) return jail_exit;
    const auto begin = reinterpret_cast<uintptr_t>(reserve);
    static_cast<Control *>(page)->result = static_cast<int64_t>(begin);
    munmap(page, 4096);
    ChildPlan plan{static_cast<int>(word[0]), static_cast<int>(word[1]), static_cast<int>(word[2]), {}, {begin, begin + reserve_bytes},
                   word[3], 0, word[4], -1, {}, {}, true};
    size_t at = 7;
    for (int64_t i = 0; i < word[6]; ++i, at += 4) plan.slots.push_back({word[at], word[at + 1], word[at + 2], word[at + 3] != 0});
    for (; at < word.size(); ++at) plan.cpus.push_back(static_cast<int>(word[at]));
    become_child(plan);
}
