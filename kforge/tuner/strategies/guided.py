"""The search that kforge ships: a Gaussian process that looks for the best point, and for the best of each part.

A kernel's space has several valleys: with shared memory large blocks are best, without it narrow ones. The expected
improvement over the best point so far stays in the valley that was found first, because the others look worse by far
until somebody goes down them. So some of the points are chosen within a *part* of the space, the points that have one
value of one parameter, by their expected improvement over the best of that part. Which kind of step comes next is
drawn at random.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import ClassVar

import numpy as np

from kforge.tuner.strategies.process import GaussianProcess
from kforge.tuner.strategies.sampling import SpreadDesign
from kforge.tuner.strategies.space import DiscreteSpace

_FAR = 4.0  # standard deviations, from which on formulas for the tail are nearer
_LEAST = 3  # points that worked: a model of fewer says nothing


class Step(Enum):
    """How a point is looked for."""

    WHOLE = "whole"  # improvement on the best of all, anywhere
    PART = "part"  # improvement on the best of a part, within it
    NEAR = "near"  # improvement on the best of all, one parameter away from it


class GuidedSearch:
    """Begins with a spread design, goes on by expected improvement in the logarithm of time."""

    DESIGN = 8  # points before there is a model
    POOL = 3000  # points that are looked at for each proposal, beside the neighbours of good ones
    MODELLED = 320  # points that the model is fitted to: the best half of so many, and others
    LEADERS = 8  # points whose neighbours are looked at
    SHARES: ClassVar = {Step.WHOLE: 0.3, Step.PART: 0.6, Step.NEAR: 0.1}

    def __init__(self, space: DiscreteSpace, seed: int):
        self._space = space
        self._random = np.random.default_rng(seed)
        sizes = np.array([len(space.values[name]) for name in space.names], dtype=float)
        self._weights = sizes**-2.0 / np.sum(sizes**-2.0)  # of parameters: a switch parts a space more than a size does
        self._design = SpreadDesign(space, self._random)
        self._process = GaussianProcess(space.features.shape[1])
        self._working = GaussianProcess(space.features.shape[1])
        self._seconds: dict[int, float] = {}  # logarithms, of points that worked
        self._failed: dict[int, None] = {}
        self._pending: dict[int, None] = {}

    def tell(self, point: int, seconds: float | None) -> None:
        if point in self._seconds or point in self._failed:
            return
        if point in self._pending:
            del self._pending[point]
        else:
            self._design.seen(point)
        if seconds is None:
            self._failed[point] = None
        else:
            self._seconds[point] = math.log(seconds)

    def ask(self, free: np.ndarray) -> int:
        told = len(self._seconds) + len(self._failed) + len(self._pending)
        begun = told >= self.DESIGN and len(self._seconds) >= _LEAST
        point = self._improving(free) if begun else self._design.choose(free)
        self._pending[point] = None
        self._design.seen(point)
        return point

    def _improving(self, free: np.ndarray) -> int:
        points, times = self._modelled()
        self._fit(points, times)
        step = list(self.SHARES)[self._random.choice(len(self.SHARES), p=list(self.SHARES.values()))]
        inside = np.ones(len(self._space), dtype=bool)
        best = float(times.min())
        if step is Step.PART and (part := self._part(points, int(points[np.argmin(times)]))) is not None:
            inside = part
            best = float(times[inside[points]].min())
        leaders = points[inside[points]][np.argsort(times[inside[points]])[: self.LEADERS]]
        inside &= free
        near = self._around(leaders[:1] if step is Step.NEAR else leaders, inside)
        looked_at = near if step is Step.NEAR and len(near) else np.union1d(self._pool(inside), near)
        if not len(looked_at):
            looked_at = self._pool(free)
        return int(looked_at[np.argmax(self._value(looked_at, best))])

    def _part(self, points: np.ndarray, best: int) -> np.ndarray | None:
        """Where in the space a parameter has a value that was tried, and is not the best point's, [points], bool."""
        codes = self._space.codes
        for k in self._random.choice(len(self._space.names), len(self._space.names), replace=False, p=self._weights):
            tried = np.unique(codes[points, k])
            if len(others := tried[tried != codes[best, k]]):
                return codes[:, k] == self._random.choice(others)
        return None

    def _value(self, points: np.ndarray, best: float) -> np.ndarray:
        """Logarithm of the expected improvement times the chance that it works at all."""
        features = self._space.features[points]
        mean, deviation = self._process.predict(features)
        value = _log_improvement((best - mean) / deviation) + np.log(deviation)
        if self._failed:  # the sign of a process of ones and zeros (Rasmussen and Williams, 6.5)
            mean, deviation = self._working.predict(features)
            value += _log_normal_cdf((mean - 0.5) / deviation)
        return value

    def _modelled(self) -> tuple[np.ndarray, np.ndarray]:
        points = np.array(list(self._seconds))
        times = np.array(list(self._seconds.values()))
        if len(points) > self.MODELLED:
            order = np.argsort(times)
            half = self.MODELLED // 2
            kept = np.concatenate([order[:half], self._random.choice(order[half:], half, replace=False)])
            points, times = points[kept], times[kept]
        return points, times

    def _fit(self, points: np.ndarray, times: np.ndarray) -> None:
        features = self._space.features
        self._process.fit(features[points], times)
        if self._pending:
            pending = np.array(list(self._pending))
            self._process.assume(features[pending], self._process.predict(features[pending])[0])
        if self._failed:
            both = np.concatenate([points, np.array(list(self._failed)[-self.MODELLED :])])
            self._working.fit(features[both], np.repeat([1.0, 0.0], [len(points), len(both) - len(points)]))

    def _pool(self, inside: np.ndarray) -> np.ndarray:
        points = np.flatnonzero(inside)
        return points if len(points) <= self.POOL else self._random.choice(points, self.POOL, replace=False)

    def _around(self, points: np.ndarray, inside: np.ndarray) -> np.ndarray:
        if not len(points):
            return points
        near = np.unique(np.concatenate([self._space.neighbours(int(p)) for p in points]))
        return near[inside[near]]


def _log_improvement(z: np.ndarray) -> np.ndarray:
    """log(phi(z) + z Phi(z)): expected improvement of a normal variable, in standard deviations.

    Far below zero by the first terms of its asymptotic series, where the sum would cancel.
    """
    z = np.minimum(z, 30.0)
    plain = np.exp(_log_density(z)) + z * _normal_cdf(z)
    tail = np.maximum(z * z, _FAR * _FAR)
    return np.where(z > -_FAR, np.log(np.maximum(plain, 1e-300)), _log_density(z) - np.log(tail) + np.log1p(-3 / tail))


def _log_normal_cdf(z: np.ndarray) -> np.ndarray:
    """Far below zero by its asymptotic series too."""
    tail = np.maximum(z * z, _FAR * _FAR)
    far = _log_density(z) - 0.5 * np.log(tail) + np.log1p(-1 / tail)
    return np.where(z > -_FAR, np.log(np.maximum(_normal_cdf(z), 1e-300)), far)


def _log_density(z: np.ndarray) -> np.ndarray:
    return -0.5 * z * z - 0.5 * math.log(2 * math.pi)


def _normal_cdf(z: np.ndarray) -> np.ndarray:
    """Abramowitz and Stegun 7.1.26, to 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(z) / math.sqrt(2))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return 0.5 + 0.5 * np.sign(z) * (1 - series * np.exp(-0.5 * z * z))
