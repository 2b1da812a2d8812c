#include "memory.h"

#include <cstdint>
#include <sys/mman.h>

namespace kforge {

std::size_t huge_bytes(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

namespace {

// An aligned range of whole huge pages, with these permissions.
void *map_aligned(std::size_t size, int protection, int flags) {
  // One huge page more than needed, so that an aligned range is inside; what lies around it goes back at once.
  void *mapped = mmap(nullptr, size + kHugePage, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) munmap(mapped, aligned - start);
  const uintptr_t end = start + size + kHugePage;
  if (end > aligned + size) munmap(reinterpret_cast<void *>(aligned + size), end - aligned - size);
  return reinterpret_cast<void *>(aligned);
}

}  // namespace

void *map_huge(std::size_t bytes) {
  const std::size_t size = huge_bytes(bytes);
  void *memory = map_aligned(size, PROT_READ | PROT_WRITE, 0);
  if (memory != nullptr) madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

void *map_shared(int file, std::size_t bytes, bool writable) {
  const std::size_t size = huge_bytes(bytes);
  void *range = map_aligned(size, PROT_NONE, MAP_NORESERVE);
  if (range == nullptr) return nullptr;
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void *memory = mmap(range, size, protection, MAP_SHARED | MAP_FIXED, file, 0);
  if (memory != MAP_FAILED) return memory;
  munmap(range, size);
  return nullptr;
}

bool make_huge(void *memory, std::size_t bytes) {
  constexpr int collapse = 25;  // MADV_COLLAPSE, spelt out so that old headers suffice
  const std::size_t size = huge_bytes(bytes);
  auto *byte = static_cast<volatile char *>(memory);
  for (std::size_t at = 0; at < size; at += kHugePage) byte[at] = 0;  // of what is not there at all nothing is made
  return madvise(memory, size, collapse) == 0;
}

void unmap_huge(void *memory, std::size_t bytes) { munmap(memory, huge_bytes(bytes)); }

}  // namespace kforge
