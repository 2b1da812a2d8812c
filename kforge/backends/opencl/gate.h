// Between a driver that runs kernels on the host's own processor (PoCL) and the kernels themselves.
//
// Such a driver maps a kernel's machine code when it is first launched, which takes system calls; a candidate must not run before
// those are forbidden. So the driver is given a gate in place of each kernel's entry: until `open_gates` a launch goes through all
// that loading takes and comes back at once, with nothing of the candidate run. This program's dlsym stands in front of the C
// library's for that (it must be linked with -rdynamic). Drivers that never look up such a name are not concerned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <dlfcn.h>

namespace kforge_opencl {

// PoCL's entry of a work-group: arguments, context, and the group's number in x, y and z.
using WorkGroup = void (*)(uint8_t *, uint8_t *, size_t, size_t, size_t);
constexpr char work_group_prefix[] = "_pocl_kernel_";
constexpr size_t most_gates = 128;

inline bool gates_open = false;
inline WorkGroup behind[most_gates];
inline size_t gates = 0;

template <size_t N>
void gate(uint8_t *arguments, uint8_t *context, size_t x, size_t y, size_t z) {
    if (gates_open) behind[N](arguments, context, x, y, z);
}

template <size_t... N>
constexpr std::array<WorkGroup, sizeof...(N)> all_gates(std::index_sequence<N...>) {
    return {gate<N>...};
}
inline const auto gate_at = all_gates(std::make_index_sequence<most_gates>());

// From now on launches run kernels: to be called when the process is locked down.
inline void open_gates() { gates_open = true; }

inline void *real_dlsym(void *library, const char *name) {
    using Lookup = void *(*)(void *, const char *);
    static const auto lookup = [] {
        void *found = nullptr;
        for (const char *version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
            if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", version);
        }
        return reinterpret_cast<Lookup>(found);
    }();
    return lookup(library, name);
}

}  // namespace kforge_opencl

extern "C" __attribute__((visibility("default"))) void *dlsym(void *library, const char *name) {
    using namespace kforge_opencl;
    void *found = real_dlsym(library, name);
    if (found == nullptr || std::strncmp(name, work_group_prefix, sizeof work_group_prefix - 1) != 0) return found;
    // No gate left, or a kernel that is loaded behind the gates: it is not served.
    if (gates == most_gates || gates_open) return nullptr;
    behind[gates] = reinterpret_cast<WorkGroup>(found);
    return reinterpret_cast<void *>(gate_at[gates++]);
}
