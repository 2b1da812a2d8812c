"""Which parameters of a template mattered, from the points that a search happened to try.

A search does not vary one parameter at a time: what it tries later is what looked good before, so parameters go
together and each alone may seem to explain everything. What counts here is what a parameter explains that all others
leave open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kforge.core.workload import Attr
from kforge.tuner.points import Point
from kforge.tuner.proposals import Importances

_LEAST_POINTS = 12
_PER_COEFFICIENT = 2  # points for each coefficient that is fitted: with fewer, chance explains as much
_ROUNDING = 1e-12  # squared differences of logarithms that are none


def importances(measured: Mapping[Point, Mapping[str, float]], weights: Mapping[str, float],
                template: str) -> Importances:
    """Of a template's points that were timed in every bucket; ``rows`` counts as a parameter.

    By least squares on the logarithm of the weighted time, a coefficient for each value but the first: the share of the
    variance that is lost when the parameter is left out, less what as many arbitrary coefficients would explain.
    """
    points = [p for p, seconds in measured.items() if p.template == template and set(weights) <= set(seconds)]
    groups = {name: columns for name, columns in _coded(points).items() if columns.size}
    coefficients = 1 + sum(columns.shape[1] for columns in groups.values())
    if len(points) < max(_LEAST_POINTS, _PER_COEFFICIENT * coefficients):
        return Importances(len(points))
    times = np.log([sum(weights[b] * measured[p][b] for b in sorted(weights)) or 1.0 for p in points])
    whole = float(np.sum((times - times.mean()) ** 2))
    if whole < _ROUNDING * len(points):
        return Importances(len(points))
    left = _left(groups.values(), times)
    noise = left / (len(points) - coefficients)
    found = {}
    for name, columns in groups.items():
        lost = _left((other for key, other in groups.items() if key != name), times) - left
        found[name] = max(0.0, lost - noise * columns.shape[1]) / whole
    together = max(1.0, sum(found.values()))
    return Importances(len(points), {name: share / together for name, share in found.items()})


def _coded(points: Sequence[Point]) -> dict[str, np.ndarray]:
    """Parameter -> a column of zeros and ones for each of its values but the first, [points, values - 1]."""
    columns: dict[str, np.ndarray] = {}
    for name in ["rows", *(name for name, _ in points[0].params)] if points else []:
        values: list[Attr] = [p.rows if name == "rows" else dict(p.params)[name] for p in points]
        others = list(dict.fromkeys(values))[1:]
        columns[name] = np.array([[value == other for other in others] for value in values], dtype=float)
    return columns


def _left(groups: Iterable[np.ndarray], times: np.ndarray) -> float:
    """The sum of squares that the best fit with these columns leaves."""
    design = np.column_stack([np.ones(len(times)), *groups])
    fit = np.linalg.lstsq(design, times, rcond=None)[0]
    return float(np.sum((times - design @ fit) ** 2))
