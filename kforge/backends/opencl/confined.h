// What a process needs that is locked down while it still has to open a device.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kforge_opencl {

constexpr int64_t unpacked_bytes = 64 << 20;  // of a file that a driver may write while it loads

// A folder of the process's own below the current one, and then the current one.
inline bool own_folder() {
    constexpr uid_t nobody = 65534;
    const std::string name = "own-" + std::to_string(getpid());
    if (mkdir(name.c_str(), 0700)) return false;
    if (geteuid() == 0 && chown(name.c_str(), nobody, nobody)) return false;
    return chdir(name.c_str()) == 0;
}

// What is allocated later must come out of memory that is there already, since to grow takes system calls: `steady_heap` before
// the driver's threads start, `fill_heap` when all is loaded.
constexpr int heap_bytes = 64 << 20;

inline void steady_heap() {
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, heap_bytes);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
}

inline void fill_heap() {
    void *volatile room = std::malloc(heap_bytes / 4);
    std::free(room);
}

// Landlock under which the process reads the system's libraries and descriptions of its hardware, and writes to its current
// folder, an empty one of its own, in which a driver unpacks what it is given. Nothing else.
inline bool landlock_but_for_drivers() {
    struct Ruleset {
        uint64_t files, net, scoped;
    };
    struct __attribute__((packed)) Beneath {
        uint64_t access;
        int32_t folder;
    };
    constexpr long create = 444, add_rule = 445, restrict_self = 446;
    constexpr uint64_t execute = 1 << 0, read_file = 1 << 2, read_folder = 1 << 3;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return false;
    const long version = syscall(create, nullptr, 0, 1);
    if (version < 1) return false;
    const int bits = version == 1 ? 13 : version == 2 ? 14 : version < 5 ? 15 : 16;
    const uint64_t all = (uint64_t{1} << bits) - 1;
    Ruleset ruleset{all, version >= 4 ? 3u : 0u, version >= 6 ? 3u : 0u};
    const size_t size = version < 4 ? 8 : version < 6 ? 16 : 24;
    const long rules = syscall(create, &ruleset, size, 0);
    if (rules < 0) return false;
    const auto allow = [&](const char *path, uint64_t access) {
        const int folder = open(path, O_PATH | O_CLOEXEC);
        if (folder < 0) return;  // what is not there needs no rule
        const Beneath beneath{access, folder};
        syscall(add_rule, rules, 1, &beneath, 0);
        close(folder);
    };
    for (const char *path : {"/usr", "/lib", "/lib64", "/etc", "/sys/devices", "/sys/bus", "/sys/fs/cgroup", "/proc"}) {
        allow(path, execute | read_file | read_folder);
    }
    allow(".", all);
    const bool done = syscall(restrict_self, rules, 0) == 0;
    close(static_cast<int>(rules));
    return done;
}

}  // namespace kforge_opencl
