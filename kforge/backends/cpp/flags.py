"""Compiler and linker flags of a kernel: freestanding, position independent, and nothing that admission refuses."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

from kforge.backends.features import isa_flags
from kforge.core.target import Target

_COMMON = (
    "-std=c++17", "-O3", "-ffreestanding", "-nostdlib", "-shared", "-fPIC", "-fvisibility=hidden",
    # Every rounding is the source's: the order specifications allow no contraction.
    "-ffp-contract=off", "-fno-math-errno",
    "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-stack-protector", "-fno-ident",
    "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-lto",
    # A jump table is an indirect jump, which admission refuses.
    "-fno-jump-tables",
    "-fno-strict-aliasing", "-ffunction-sections", "-fdata-sections", "-Wno-psabi",
    "-Wl,--gc-sections", "-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,separate-code",
    "-Wl,--build-id=none", "-Wl,--no-undefined", "-Wl,--hash-style=gnu", "-Wl,--strip-all",
)
_GCC = ("-fno-tree-loop-distribute-patterns",)
_X86 = ("-fcf-protection=none",)
# Atomics are instructions, not calls of a library; return addresses are not signed.
_ARM = ("-mno-outline-atomics", "-mbranch-protection=none")
# The linker's way around an erratum of Cortex-A53, which has no dot products, jumps past the end of the code.
_NO_A53 = ("-mno-fix-cortex-a53-835769", "-mno-fix-cortex-a53-843419")


def flags(target: Target, compiler_name: str) -> tuple[str, ...]:
    """All flags for ``target``; ``-mtune=native`` only when the target is this machine."""
    parts = [*_COMMON, *isa_flags(target.arch, target.features)]
    if compiler_name == "g++":
        parts += _GCC
    if target.arch == "x86_64":
        parts += _X86
    if target.arch == "aarch64":
        parts += _ARM
        if compiler_name == "g++" and "asimddp" in target.features:
            parts += _NO_A53
    if target.arch != platform.machine() and compiler_name == "clang++":
        parts.append(f"--target={target.arch}-linux-gnu")
    if is_host(target):
        parts.append("-mtune=native")
    return tuple(parts)


def is_host(target: Target) -> bool:
    """Whether the target is this machine's processor: same architecture and model, and no feature that it lacks."""
    model, features = host_processor()
    return target.arch == platform.machine() and target.model == model and set(target.features) <= features


@lru_cache(maxsize=1)
def host_processor() -> tuple[str, frozenset[str]]:
    """Model name and feature flags of this machine ('' and none where /proc/cpuinfo does not tell)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "", frozenset()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return fields.get("model name", ""), frozenset(fields.get("flags", fields.get("Features", "")).split())
