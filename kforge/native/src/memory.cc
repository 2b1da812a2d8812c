#include "memory.h"

#include <cstdint>
#include <sys/mman.h>

namespace kforge {

std::size_t huge_bytes(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

void *map_huge(std::size_t bytes) {
  const std::size_t size = huge_bytes(bytes);
  // One huge page more than needed, so that an aligned range is inside; what lies around it goes back at once.
  void *mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(mapped, aligned - start);
  const uintptr_t end = start + size + kHugePage;
  if (end > aligned + size) munmap(reinterpret_cast<void *>(aligned + size), end - aligned - size);
  madvise(reinterpret_cast<void *>(aligned), size, MADV_HUGEPAGE);
  return reinterpret_cast<void *>(aligned);
}

void unmap_huge(void *memory, std::size_t bytes) { munmap(memory, huge_bytes(bytes)); }

}  // namespace kforge
