"""Problems made to fit a machine: their sizes halved until all tensors fit. Nothing is allocated to find that out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kforge.core.words import counted
from kforge.importing.failures import ImportFailure
from kforge.importing.loading import Source

_LEAST_BATCH, _LEAST_SIZE = 16, 32  # so that rows and lanes remain
_WORTH_IT = 0.95  # what a halving must leave, at most, of what is too much


@dataclass(frozen=True)
class Extent:
    """What a call takes: bytes of all that is given, kept and returned; operations of products of matrices."""

    bytes: int
    operations: int
    shapes: tuple[tuple[int, ...], ...] = ()  # of the arguments that are tensors


@dataclass(frozen=True)
class Room:
    bytes: int
    operations: int

    def lacks(self, extent: Extent) -> bool:
        return extent.bytes > self.bytes or extent.operations > self.operations


@dataclass(frozen=True)
class Scaling:
    """``sizes`` replace those of the file under these names; leading dimensions of arguments are divided by ``lead``.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    lead: int = 1

    def told(self, source: Source) -> str:
        """In words; "" when nothing was scaled."""
        parts = [f"{name} {source.sizes[name]} -> {size}" for name, size in self.sizes.items()]
        if self.lead > 1:
            parts.append(f"leading dimensions / {self.lead}, inputs standard normal")
        return ", ".join(parts)


Measure = Callable[[Scaling], Extent]  # raises ImportFailure for sizes that make no sense together


def fitted(source: Source, measure: Measure, room: Room, scale: str) -> Scaling:
    """``scale``: "auto" halves until the room is enough, "none" never, a power of two that often in all.

    Raises ImportFailure where that does not get there.
    """
    scaling = Scaling()
    extent = measure(scaling)
    if scale == "none":
        return scaling
    wanted = 0 if scale == "auto" else int(scale).bit_length() - 1
    done = 0
    while room.lacks(extent) if scale == "auto" else done < wanted:
        found = _halved(source, measure, scaling, extent, room if scale == "auto" else None)
        if found is None:
            if wanted:
                advice = f"give --scale {1 << done} at most" if done else "give --scale none"
                raise ImportFailure(f"--scale {scale} asks for {counted(wanted, 'halving')}, and no size can be halved "
                                    f"further after {done}: {advice}")
            has = f"{extent.bytes / 2**20:.0f} MiB and {extent.operations / 1e9:.0f} G operations a call"
            fits = f"{room.bytes / 2**20:.0f} MiB and {room.operations / 1e9:.0f} G operations"
            raise ImportFailure(f"it takes {has}, {fits} would fit, and no size can be halved further")
        scaling, extent = found.scaling, found.extent
        done += 1
    return scaling


@dataclass(frozen=True)
class _Found:
    scaling: Scaling
    extent: Extent


def _halved(source: Source, measure: Measure, scaling: Scaling, extent: Extent, room: Room | None) -> _Found | None:
    """With the first size halved that helps: the batch, then the largest others, then leading dimensions."""
    tries = []
    for name in sorted(source.sizes, key=lambda n: (not _is_batch(n), -scaling.sizes.get(n, source.sizes[n]))):
        half = scaling.sizes.get(name, source.sizes[name]) // 2
        if half >= (_LEAST_BATCH if _is_batch(name) else _LEAST_SIZE):
            tries.append(Scaling({**scaling.sizes, name: half}, scaling.lead))
    tries.append(Scaling(scaling.sizes, scaling.lead * 2))
    for attempt in tries:
        try:
            now = measure(attempt)
        except ImportFailure:
            continue
        if _helps(extent, now, room):
            return _Found(attempt, now)
    return None


def _is_batch(name: str) -> bool:
    return "batch" in name.lower()


def _helps(before: Extent, after: Extent, room: Room | None) -> bool:
    if room is None:
        return after.bytes < before.bytes or after.operations < before.operations
    if before.bytes > room.bytes:  # first: a smaller batch would take operations off that smaller weights may take too
        return after.bytes <= _WORTH_IT * before.bytes
    return after.operations <= _WORTH_IT * before.operations
