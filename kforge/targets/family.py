"""Kinds of targets on which the same moves pay."""

from __future__ import annotations

from kforge.core.target import Target

# The widest thing that kernels are written around, by architecture; the first one that a target has.
_WIDEST = {
    "x86_64": ("avx512_vnni", "avx512f", "avx_vnni", "avx2", "sse4_2"),
    "aarch64": ("sve2", "sve", "i8mm", "asimddp", "asimd"),
}


def family(target: Target) -> str:
    """Such as ``x86_64 avx512_vnni``; where nothing of a list applies, as on GPUs, the architecture."""
    widest = next((name for name in _WIDEST.get(target.arch, ()) if target.has(name)), "")
    return f"{target.arch} {widest}".strip()
