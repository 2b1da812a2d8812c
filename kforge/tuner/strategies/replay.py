"""A strategy on a recorded space: how near to the optimum it is after each evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kforge.tuner.strategies.base import Strategy
from kforge.tuner.strategies.recorded import Recorded


def replay(strategy: Strategy, recorded: Recorded, evaluations: int, seeds: Sequence[int] = ()) -> np.ndarray:
    """The optimum over the best found, [evaluations]; 0 while nothing has worked.

    ``seeds`` are measured first and count. An evaluation is a point that was tried, whether it worked or not; none is
    tried twice, so all of a space that is smaller than ``evaluations`` are tried, and the last share stays.
    """
    free = np.ones(len(recorded.space), dtype=bool)
    waiting = list(dict.fromkeys(seeds))
    best = np.inf
    shares = np.ones(evaluations)
    for n in range(min(evaluations, len(free))):
        point = waiting.pop(0) if waiting else strategy.ask(free)
        free[point] = False
        cost = float(recorded.cost[point])
        worked = not np.isnan(cost)
        strategy.tell(point, cost if worked else None)
        best = min(best, cost) if worked else best
        shares[n] = recorded.optimum / best
    return shares


def seeds_from(other: Recorded, recorded: Recorded, count: int = 10) -> list[int]:
    """The ``count`` best points of another target's space, as far as they are legal here."""
    space = recorded.space
    rows = [
        [space.values[name].index(parameters[name]) for name in space.names]
        for parameters in other.best(count)
        if all(parameters.get(name) in space.values[name] for name in space.names)
    ]
    return list(dict.fromkeys(space.find(np.array(rows, dtype=np.int16).reshape(-1, len(space.names))).tolist()))
