"""Hand-written kernels for the executor's tests: compiled here and cut out of the ELF file without any admission."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

from kforge.core.image import Image, Relocation, Segment
from kforge.native import build_library

# Trusted code of a test, so build_library may compile it; hidden visibility and no PLT keep it position independent.
_FLAGS = ("-ffreestanding", "-nostdlib", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
          "-fvisibility=hidden", "-fno-tree-loop-distribute-patterns",
          "-Wl,-z,noexecstack", "-Wl,-z,separate-code", "-Wl,--build-id=none")
_PRELUDE = '#include "kforge/abi.h"\n#define KERNEL extern "C" __attribute__((visibility("default")))\n'


@functools.cache
def image_of(body: str) -> Image:
    """Image of a kernel with this C++ source text."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.cc"
        source.write_text(_PRELUDE + body)
        elf = ELFFile(io.BytesIO(build_library("test_kernel", [source], _FLAGS).read_bytes()))
    segments, relocations = [], []
    for part in elf.iter_segments("PT_LOAD"):
        writable = part["p_flags"] & 2  # .dynamic and constants that need relocations
        skipped = part["p_vaddr"] % 4096
        segments.append(Segment(part["p_vaddr"] - skipped, b"\0" * skipped + part.data(), part["p_memsz"] + skipped,
                                bool(part["p_flags"] & 1) and not writable))
    if (table := elf.get_section_by_name(".rela.dyn")) is not None:
        relocations = [Relocation(r["r_offset"], r["r_addend"]) for r in table.iter_relocations()]
    symbols = {s.name: s["st_value"] for s in elf.get_section_by_name(".dynsym").iter_symbols()}
    return Image(symbols["kforge_kernel"], symbols.get("kforge_scratch_bytes", -1), tuple(segments), tuple(relocations))


ADD_AXIS = """
KERNEL void kforge_kernel(const kf_launch *l) {  // out[i] += axes[0] * scalars[0], each thread its rows of out[rows, n]
  float *out = (float *)l->tensors[0].data;
  const int64_t n = l->axes[1];
  for (int64_t r = l->thread; r < l->axes[2]; r += l->threads)
    for (int64_t i = 0; i < n; ++i) out[r * l->tensors[0].strides[0] + i] += (float)(l->axes[0] * l->scalars[0]);
}
"""

# Each thread adds its neighbour's number in rounds that only barriers keep apart.
ROUNDS = """
KERNEL void kforge_kernel(const kf_launch *l) {
  volatile int64_t *cells = (volatile int64_t *)l->scratch;
  int32_t *errors = (int32_t *)l->tensors[0].data;
  const int32_t next = (l->thread + 1) % l->threads;
  int32_t wrong = 0;
  for (int64_t round = 0; round < l->axes[0]; ++round) {
    cells[8 * l->thread] = round;
    l->barrier(l->team);
    if (cells[8 * next] != round) ++wrong;
    l->barrier(l->team);
  }
  errors[l->thread] += wrong;
}
KERNEL int64_t kforge_scratch_bytes(const int64_t *axes, int32_t threads) { return 64 * threads + axes[1]; }
"""

TABLE = """
static int one(int x) { return x + 1; }
static int two(int x) { return x * 2; }
extern "C" __attribute__((visibility("hidden"))) int (*const table[2])(int) = {one, two};
KERNEL void kforge_kernel(const kf_launch *l) {  // through pointers that need relocations
  int32_t *out = (int32_t *)l->tensors[0].data;
  if (l->thread == 0) for (int i = 0; i < 2; ++i) out[i] = (*(int (*const volatile *)(int))&table[i])(20);
}
"""

SPOIL_MXCSR = """
KERNEL void kforge_kernel(const kf_launch *l) {
  uint32_t *seen = (uint32_t *)l->tensors[0].data;
  seen[l->thread] = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(0x1F80u | 0x8040u | 0x6000u);  // flush, denormals are zero, round towards zero
}
"""
