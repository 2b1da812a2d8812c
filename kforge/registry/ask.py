"""The question as people and engines ask it: an operator with named axes, on a target; wraps the pure look-up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kforge.core.kernel import Answer
from kforge.core.paths import registry_path
from kforge.core.target import Target
from kforge.core.workload import Attr
from kforge.registry.lookup import Asker, lookup
from kforge.registry.snapshot import Snapshot, read
from kforge.registry.validators import Toolchain

ABI_VERSION = 1  # of kforge/abi.h; a test holds the two together


def open_snapshot(path: Path | None = None) -> Snapshot:
    """The registry as it is now (``$KFORGE_HOME`` or the platform's data folder when no path is given)."""
    return read(path or registry_path())


def asker(target: Target) -> Asker:
    """Who asks, on ``target``: its identity, its kin (same ISA, other core counts) and its toolchain."""
    from kforge.operators import IMPORTED_VERSION, get, imported_names, names

    compilers = tuple(f"{c.name} {c.version}" for c in target.compilers)
    versions = {name: get(name).version for name in names()} | dict.fromkeys(imported_names(), IMPORTED_VERSION)
    return Asker(target.identity, Toolchain(ABI_VERSION, tuple(versions.items()), compilers), siblings(target))


def siblings(target: Target) -> tuple[str, ...]:
    """Identities of targets that differ in nothing but the number of cores (1 to 256)."""
    import dataclasses

    return tuple(dataclasses.replace(target, cores=n).identity for n in range(1, 257) if n != target.cores)


def ask(snapshot: Snapshot, operator: str, axes: Mapping[str, Attr], target: str | Target = "host") -> Answer:
    """Look up ``operator`` with static attributes and dynamic axes in one mapping.

    A missing ``rows`` of a packed weight is the layout that was chosen for it on this target, else the default.
    Raises KforgeError that names the operator or axis that is unknown, missing or impossible.
    """
    from kforge.operators import get
    from kforge.operators.axes import workload_of
    from kforge.targets.files import load_target

    hardware = target if isinstance(target, Target) else load_target(target)
    workload = workload_of(operator, axes, lambda weight: snapshot.rows(weight, hardware.identity))
    return lookup(snapshot, workload.problem, workload.axes, asker(hardware), get(operator).bucket)
