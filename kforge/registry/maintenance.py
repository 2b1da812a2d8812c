"""Keeping the registry sound: verify every file by hash, collect what nothing refers to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

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


def verify(registry: Registry, snapshot: Snapshot, *, quarantine: bool = True) -> Verification:
    """Hash every artifact and source. A damaged served kernel is quarantined, so that the default serves meanwhile."""
    damaged: list[Damage] = []
    wanted: set[str] = set()
    for kernel in snapshot.kernels:
        for digest in (kernel.artifact_hash, kernel.source_hash):
            wanted.add(digest)
            path = registry.store.path(digest)
            if not path.exists():
                damaged.append(Damage(kernel.id, digest, "missing"))
            elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                damaged.append(Damage(kernel.id, digest, "its bytes do not have this hash"))
    if quarantine:
        served = {k.id for k in snapshot.kernels if k.state in (KernelState.PROMOTED, KernelState.ACCEPTED)}
        for kernel_id in sorted({d.kernel_id for d in damaged} & served):
            reasons = "; ".join(f"{d.digest[:12]}: {d.reason}" for d in damaged if d.kernel_id == kernel_id)
            registry.set_state(kernel_id, KernelState.QUARANTINED, reasons)
    present = set(registry.store.digests())
    return Verification(len(snapshot.kernels), len(wanted), tuple(damaged), len(present - wanted))


@dataclass(frozen=True)
class Collected:
    files: int
    bytes: int


def collect(registry: Registry, snapshot: Snapshot, *, dry_run: bool = False) -> Collected:
    """Remove store files that no accepted or promoted kernel names; the history in the database stays."""
    keep = {
        digest
        for kernel in snapshot.kernels
        if kernel.state in (KernelState.ACCEPTED, KernelState.PROMOTED)
        for digest in (kernel.artifact_hash, kernel.source_hash)
    }
    files = size = 0
    for digest in registry.store.digests():
        if digest not in keep:
            files += 1
            path = registry.store.path(digest)
            size += path.stat().st_size if dry_run else registry.store.remove(digest)
    return Collected(files, size)
