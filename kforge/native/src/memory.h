// Large aligned memory.
#ifndef KFORGE_NATIVE_MEMORY_H
#define KFORGE_NATIVE_MEMORY_H

#include <cstddef>

namespace kforge {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// `bytes` rounded up to whole huge pages.
std::size_t huge_bytes(std::size_t bytes);

// Zeroed anonymous private memory, 2 MiB aligned, huge pages asked for (a wish, not a demand: 4 KiB pages where the
// system has none). Null when there is no memory. Give it back with unmap_huge and the same size.
void *map_huge(std::size_t bytes);
void unmap_huge(void *memory, std::size_t bytes);

// A memory file's first `bytes`, shared, 2 MiB aligned; read-only unless `writable`. Null when it cannot be mapped.
void *map_shared(int file, std::size_t bytes, bool writable);

// Commits a shared mapping in huge pages, as the system's setting for shared memory would not by itself. False where the
// kernel cannot (before 6.1): then pages are small.
bool make_huge(void *memory, std::size_t bytes);

}  // namespace kforge
#endif
