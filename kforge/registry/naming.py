"""Kernels by what people call them."""

from __future__ import annotations

from collections.abc import Iterable

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord


def kernel_named(name: str, kernels: Iterable[KernelRecord]) -> KernelRecord:
    """The kernel of this number, or whose candidate's or artifact's hash begins so. Raises KforgeError."""
    found = [
        k
        for k in kernels
        if str(k.id) == name
        or (len(name) >= 4 and (k.candidate_hash.startswith(name) or k.artifact_hash.startswith(name)))
    ]
    if len({k.id for k in found}) != 1:
        problem = "no kernel" if not found else f"{len(found)} kernels (numbers {', '.join(str(k.id) for k in found)})"
        raise KforgeError(f"{name!r} names {problem}; see: kforge kernels list")
    return found[0]
