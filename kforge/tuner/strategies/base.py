"""What a search strategy is: something that names the next point of a space and is told what became of it."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Strategy(Protocol):
    """Knows a ``DiscreteSpace`` and what it was told; neither templates nor hardware."""

    def ask(self, free: np.ndarray) -> int:
        """The next point to measure, an index into the space, among those that are ``free`` ([points], bool).

        There is at least one. A point that was asked for and not told of yet counts as pending: the next one is chosen
        as if its result were known to be what is expected of it, so that several can be measured side by side.
        """
        ...

    def tell(self, point: int, seconds: float | None) -> None:
        """What a point took; None for one that could not be built, was wrong or crashed.

        Points that nobody asked for may be told too: seeds, and what an earlier process measured. A point that is told
        twice counts once.
        """
        ...
