// Maps an admitted kernel image (kforge.core.image.Image.blob) into this process.
#ifndef KFORGE_NATIVE_LOADER_H
#define KFORGE_NATIVE_LOADER_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "kforge/abi.h"

namespace kforge {

using KernelEntry = void (*)(const kf_launch *);
using ScratchEntry = int64_t (*)(const int64_t *axes, int32_t threads);

// A mapped kernel. Code is r-x, constants are r--, the rest of the range and a page on each side are
// inaccessible; nothing is ever both writable
// and executable. Unmaps itself.
class LoadedKernel {
 public:
  LoadedKernel() = default;
  ~LoadedKernel();
  LoadedKernel(const LoadedKernel &) = delete;
  LoadedKernel &operator=(const LoadedKernel &) = delete;

  // Maps the blob; false, with one sentence in `error`, when it is malformed or memory cannot be had. Every offset is
  // checked: the blob may come from a file. Call once.
  bool load(const uint8_t *blob, std::size_t bytes, std::string *error);

  KernelEntry entry() const { return entry_; }
  bool wants_scratch() const { return scratch_ != nullptr; }

  // Bytes of scratch for these axes; 0 when the kernel needs none.
  int64_t scratch_bytes(const int64_t *axes, int32_t threads) const {
    return scratch_ == nullptr ? 0 : scratch_(axes, threads);
  }

  const void *base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void *mapped_ = nullptr; // with a guard page on each side of the image
  std::size_t mapped_bytes_ = 0;
  uint8_t *base_ = nullptr;
  std::size_t bytes_ = 0;
  KernelEntry entry_ = nullptr;
  ScratchEntry scratch_ = nullptr;
};

}  // namespace kforge
#endif
