"""What an isolated executor is to build, as data: pure, read by ``executor.cc`` in the order in which it is written."""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """``offset`` bytes into a block."""

    block: int
    offset: int


@dataclass(frozen=True)
class PlannedTensor:
    place: Place
    strides: tuple[int, ...]  # elements


@dataclass(frozen=True)
class PlannedLaunch:
    """``kernel``: index into the plan's images."""

    kernel: int
    axes: Place
    scalars: Place
    tensors: tuple[PlannedTensor, ...]


@dataclass(frozen=True)
class PlannedBlock:
    size: int
    writable: bool  # by kernels


@dataclass(frozen=True)
class Plan:
    threads: int
    scratch_bytes: int  # that each launch may use, all of them the same
    blocks: tuple[PlannedBlock, ...]
    images: tuple[bytes, ...]  # Image.blob()
    programs: tuple[tuple[PlannedLaunch, ...], ...]

    def to_bytes(self) -> bytes:
        """64-bit words, and the images after them."""
        head = [self.threads, self.scratch_bytes, len(self.blocks)]
        for block in self.blocks:
            head += [block.size, int(block.writable)]
        head.append(len(self.images))
        tail = [len(self.programs)]
        for launches in self.programs:
            tail.append(len(launches))
            for launch in launches:
                tail += _words(launch)
        offset = 8 * (len(head) + 2 * len(self.images) + len(tail))
        for image in self.images:
            head += [offset, len(image)]
            offset += len(image)
        return array.array("q", head + tail).tobytes() + b"".join(self.images)


def _words(launch: PlannedLaunch) -> Sequence[int]:
    words = [launch.kernel, launch.axes.block, launch.axes.offset, launch.scalars.block, launch.scalars.offset]
    words.append(len(launch.tensors))
    for tensor in launch.tensors:
        words += [tensor.place.block, tensor.place.offset, len(tensor.strides), *tensor.strides]
    return words
