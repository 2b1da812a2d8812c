"""Buckets of dynamic axes, shared by tuner and engine."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def point(points: Sequence[int], value: int) -> int:
    """The smallest point not below ``value``, or the last one."""
    return points[min(bisect.bisect_left(points, value), len(points) - 1)]


def inside(points: Sequence[int], value: int, seed: int) -> list[int]:
    """Some values of the bucket of ``value``: lowest, point, an odd and an even one between; beyond the last, too.

    ``seed`` chooses those between, so that nobody who does not know it can be right at the checked ones alone.
    """
    top = point(points, value)
    index = points.index(top)
    low = points[index - 1] + 1 if index else 1
    values = {low, top}
    if top - low > 1:
        chosen = random.Random(f"{seed} {top}")
        values |= {chosen.randrange(low, top) | 1, chosen.randrange(low + 1, top) & ~1}
    if index == len(points) - 1:
        values.add(top + 7)
    return sorted(values)
