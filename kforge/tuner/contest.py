"""All that competes for one task: the shipped templates in one lane, and a lane for each proposed template.

A lane has a space and a search of its own, because Optuna's studies cannot take new choices. What decides looks over
all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kforge.core.trial import Candidate
from kforge.tuner.plan import Task
from kforge.tuner.points import Point, Space
from kforge.tuner.proposals import Proposal
from kforge.tuner.search import FAILURES, FAR_BEHIND, TaskSearch

LAYOUT_GAIN = 0.10  # what another layout must promise: no judge confirms it, and a wrong one costs every bucket
_CURIOSITY = 0.1  # log ratio that a lane may be behind for each unit of the confidence bound


@dataclass
class Lane:
    """``rounds``: how often it was given the machine. ``deserved``: points that it may have tried in all."""

    space: Space
    search: TaskSearch
    proposal: Proposal | None = None
    rounds: int = 0
    deserved: float = math.inf

    @property
    def left(self) -> float:
        """Points that may still be tried."""
        return max(self.deserved - len(self.search.measured), 0)

    @property
    def hopeless(self) -> bool:
        """Whether it was tried and nothing of it worked in any bucket."""
        return len(self.search.measured) >= FAILURES and not any(self.search.measured.values())


def any_lane(_: Lane) -> bool:
    return True


def used_trials(lane: Lane) -> int:
    """About so many: a point that failed in one bucket was not tried in the others."""
    return len(lane.search.measured) * len(lane.space.task.buckets)


@dataclass
class Contest:
    """``weights``: bucket -> share of a step per second of its call. ``limits``: bucket -> seconds that the target's
    limits allow.
    """

    lanes: list[Lane]
    weights: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def main(self) -> Lane:
        """The shipped templates'."""
        return self.lanes[0]

    @property
    def task(self) -> Task:
        return self.main.space.task

    @property
    def rounds(self) -> int:
        return sum(lane.rounds for lane in self.lanes)

    @property
    def measured(self) -> dict[Point, dict[str, float]]:
        return {point: seconds for lane in self.lanes for point, seconds in lane.search.measured.items()}

    @property
    def points(self) -> int:
        return sum(len(lane.space.points) for lane in self.lanes)

    @property
    def promise(self) -> float:
        """Share of a step that this task could still give back: Amdahl's share times head-room to the roofline."""
        best = self._best(self.measured)
        return sum(w * max(best[b] - self.limits.get(b, 0.0), 0.0) for b, w in self.weights.items() if b in best)

    def lane_of(self, point: Point) -> Lane | None:
        return next((lane for lane in self.lanes if point in lane.space), None)

    def render(self, point: Point) -> Candidate:
        """Raises KeyError for a point of no lane."""
        lane = self.lane_of(point)
        if lane is None:
            raise KeyError(point)
        if lane.proposal is None:
            return lane.space.render(point)
        return lane.space.render(point, lane.proposal.author)

    def live(self) -> Iterator[Lane]:
        """Lanes that are worth more of the machine's time."""
        best = self._best(self.measured)
        for lane in self.lanes:
            own = self._best(lane.search.measured)
            behind = own and all(own[b] > FAR_BEHIND * best[b] for b in own)
            if not (lane.search.exhausted or lane.hopeless or not lane.left or (behind and lane.proposal is not None)):
                yield lane

    def next_lane(self, allowed: Callable[[Lane], bool] = any_lane) -> Lane | None:
        """The one with the most to hope for: how near its best is to the best of all, plus what few rounds leave open
        (an upper confidence bound). A lane that nobody has tried comes first.
        """
        live = [lane for lane in self.live() if allowed(lane)]
        if not live:
            return None
        best = self._best(self.measured)

        def hope(lane: Lane) -> float:
            if not lane.rounds:
                return math.inf
            own = self._best(lane.search.measured)
            behind = min((math.log(own[b] / best[b]) for b in own), default=math.log(FAR_BEHIND))
            return _CURIOSITY * math.sqrt(math.log(1 + self.rounds) / lane.rounds) - behind

        return max(live, key=hope)

    def ranking(self, bucket: str, rows: int) -> list[Point]:
        """Points in one layout by their time in one bucket, fastest first."""
        timed = [(s[bucket], p) for p, s in self.measured.items() if p.rows == rows and bucket in s]
        return [p for _, p in sorted(timed, key=lambda item: item[0])]

    @staticmethod
    def _best(measured: Mapping[Point, Mapping[str, float]]) -> dict[str, float]:
        best: dict[str, float] = {}
        for seconds in measured.values():
            for bucket, value in seconds.items():
                best[bucket] = min(value, best.get(bucket, value))
        return best


def best_rows(measured: Mapping[Point, Mapping[str, float]], weights: Mapping[str, float], default: int) -> int:
    """The layout with the least weighted time, each bucket at its own best point in that layout.

    ``default`` stays unless another promises ``LAYOUT_GAIN`` or more.
    """

    def cost(rows: int) -> float:
        return sum(
            w * min((s[b] for p, s in measured.items() if p.rows == rows and b in s), default=math.inf)
            for b, w in weights.items()
        )

    choices = sorted({p.rows for p in measured})
    best = min(choices, key=cost)
    return default if default in choices and cost(best) > (1 - LAYOUT_GAIN) * cost(default) else best
