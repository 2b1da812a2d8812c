"""Strategies that learn nothing: what others are held against, and how they begin."""

from __future__ import annotations

import numpy as np

from kforge.tuner.strategies.space import DiscreteSpace


class RandomSearch:
    """Any free point, each as likely."""

    def __init__(self, space: DiscreteSpace, seed: int):
        self._random = np.random.default_rng(seed)

    def ask(self, free: np.ndarray) -> int:
        return int(self._random.choice(np.flatnonzero(free)))

    def tell(self, point: int, seconds: float | None) -> None:
        pass


class SpreadDesign:
    """First points of a search that a model is to learn from: every value of every parameter equally often.

    A Latin hypercube would do the same, but not on a space of which constraints leave a part.
    """

    _LOOKED_AT = 512

    def __init__(self, space: DiscreteSpace, random: np.random.Generator):
        self._space, self._random = space, random
        self._counts = [np.zeros(len(space.values[name])) for name in space.names]

    def seen(self, point: int) -> None:
        for count, code in zip(self._counts, self._space.codes[point], strict=True):
            count[code] += 1

    def choose(self, free: np.ndarray) -> int:
        """Of some free points the one whose values were seen least."""
        points = np.flatnonzero(free)
        if len(points) > self._LOOKED_AT:
            points = self._random.choice(points, self._LOOKED_AT, replace=False)
        seen = 1e-3 * self._random.random(len(points))
        for k, count in enumerate(self._counts):
            seen += len(count) * count[self._space.codes[points, k]]
        return int(points[np.argmin(seen)])
