"""Keeping the registry sound: verify every file by hash, collect what nothing refers to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from kforge.core.kernel import KernelState
from kforge.registry.database import Registry
from kforge.registry.snapshot import Snapshot


@dataclass(frozen=True)
class Damage:
    kernel_id: int
    digest: str
    reason: str


@dataclass(frozen=True)
class Verification:
    kernels: int
    files: int
    damaged: tuple[Damage, ...]
    unreferenced: int

    @property
    def sound(self) -> bool:
        return not self.damaged


_IN_USE = (KernelState.CHECKED, KernelState.ACCEPTED, KernelState.PROMOTED)


def verify(registry: Registry, snapshot: Snapshot, *, quarantine: bool = True) -> Verification:
    """Hash the artifact and source of every checked, accepted and promoted kernel; ``collect`` may have freed others'.

    A damaged kernel is quarantined, so that the default serves meanwhile.
    """
    damaged: list[Damage] = []
    wanted: set[str] = set()
    kernels = [k for k in snapshot.kernels if k.state in _IN_USE]
    for kernel in kernels:
        for digest in (kernel.artifact_hash, kernel.source_hash):
            wanted.add(digest)
            path = registry.store.path(digest)
            if reason := _wrong_with(path, digest):
                damaged.append(Damage(kernel.id, digest, reason))
    if quarantine:
        for kernel_id in sorted({d.kernel_id for d in damaged}):
            reasons = "; ".join(f"{d.digest[:12]}: {d.reason}" for d in damaged if d.kernel_id == kernel_id)
            registry.set_state(kernel_id, KernelState.QUARANTINED, reasons)
    present = set(registry.store.digests())
    return Verification(len(kernels), len(wanted), tuple(damaged), len(present - wanted))


def _wrong_with(path: Path, digest: str) -> str:
    """What is wrong with a stored file, "" when nothing is."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if hashlib.sha256(data).hexdigest() == digest else "its bytes do not have this hash"


@dataclass(frozen=True)
class Collected:
    files: int
    bytes: int


def collect(registry: Registry, *, dry_run: bool = False) -> Collected:
    """Remove store files that no checked, accepted or promoted kernel names; the history in the database stays.

    Raises KforgeError while a tune measures: the files that it is about to accept have no entry yet.
    """
    files = size = 0
    with registry.tuning_lock("gc"):
        keep = {
            digest
            for kernel in registry.snapshot().kernels
            if kernel.state in _IN_USE
            for digest in (kernel.artifact_hash, kernel.source_hash)
        }
        for digest in registry.store.digests():
            if digest not in keep:
                files += 1
                path = registry.store.path(digest)
                size += path.stat().st_size if dry_run else registry.store.remove(digest)
    return Collected(files, size)
