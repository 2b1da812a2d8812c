"""ISA features that templates may require and flags may switch on, spelt as the Linux kernel spells them."""

from __future__ import annotations

from collections.abc import Iterable

from kforge.targets.gpu import GPU_FEATURES

# Feature -> compiler flags that let gcc and clang use it. Order does not matter: each flag implies what it needs.
X86_FLAGS: dict[str, tuple[str, ...]] = {
    "pni": ("-msse3",),
    "ssse3": ("-mssse3",),
    "sse4_1": ("-msse4.1",),
    "sse4_2": ("-msse4.2",),
    "popcnt": ("-mpopcnt",),
    "movbe": ("-mmovbe",),
    "abm": ("-mlzcnt",),
    "bmi1": ("-mbmi",),
    "bmi2": ("-mbmi2",),
    "avx": ("-mavx",),
    "f16c": ("-mf16c",),
    "fma": ("-mfma",),
    "avx2": ("-mavx2",),
    "gfni": ("-mgfni",),
    "avx_vnni": ("-mavxvnni",),
    "avx512f": ("-mavx512f",),
    "avx512cd": ("-mavx512cd",),
    "avx512bw": ("-mavx512bw",),
    "avx512dq": ("-mavx512dq",),
    "avx512vl": ("-mavx512vl",),
    "avx512ifma": ("-mavx512ifma",),
    "avx512vbmi": ("-mavx512vbmi",),
    "avx512_vbmi2": ("-mavx512vbmi2",),
    "avx512_vnni": ("-mavx512vnni",),
    "avx512_bitalg": ("-mavx512bitalg",),
    "avx512_vpopcntdq": ("-mavx512vpopcntdq",),
    "avx512_bf16": ("-mavx512bf16",),
    "avx512_fp16": ("-mavx512fp16",),
}

# aarch64 takes one -march with extensions.
ARM_EXTENSIONS: dict[str, str] = {
    "asimddp": "dotprod",
    "asimdhp": "fp16",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}

KNOWN = frozenset(X86_FLAGS) | frozenset(ARM_EXTENSIONS) | {"asimd"} | GPU_FEATURES


def lanes(features: Iterable[str]) -> int:
    """float32 lanes of the widest vector register: 16 with AVX-512, 8 with AVX2, else 4."""
    present = set(features)
    return 16 if "avx512f" in present else 8 if "avx2" in present else 4


def isa_flags(arch: str, features: Iterable[str]) -> tuple[str, ...]:
    """Compiler flags for exactly these features of ``arch``: explicit, so that building for another target works."""
    present = set(features)
    if arch == "x86_64":
        flags = ["-march=x86-64"]
        flags += [flag for feature, given in X86_FLAGS.items() if feature in present for flag in given]
        if "avx512f" in present:
            flags.append("-mprefer-vector-width=512")
        return tuple(flags)
    if arch == "aarch64":
        extensions = [name for feature, name in ARM_EXTENSIONS.items() if feature in present]
        return ("-march=" + "+".join(["armv8.2-a", *extensions]),)
    return ()
