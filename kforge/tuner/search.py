"""The search over one task's space: a strategy proposes, points are measured at all buckets at once.

One strategy and one study per bucket, because the best parameters differ by bucket; a measured point is told to all
of them, because building it is what costs. Optuna's studies are the record: a strategy is rebuilt from them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from kforge.core.workload import Attr, by_value
from kforge.tuner import strategies
from kforge.tuner.points import Point, Space
from kforge.tuner.strategies.space import DiscreteSpace
from kforge.tuner.study_file import open_study_file

POINT = "kforge_point"  # user attribute that names the point a trial stands for
FAR_BEHIND = 1.5  # times the best: more than any parameter of a template has been seen to make up
FAILURES = 3  # points that may fail before a template of which none ran is given up


def open_storage(folder: Path) -> JournalStorage:
    """Optuna's journal in the run's folder."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return open_study_file(folder / "study.journal")


class TaskSearch:
    """Proposes points of one space and learns from what they took. Never proposes a point twice."""

    def __init__(
        self, space: Space, storage: JournalStorage, buckets: Iterable[str], seeds: Iterable[Point], seed: int = 0,
        name: str = "", strategy: str = strategies.DEFAULT
    ):
        """``name`` tells the studies of several searches for one task apart. Raises KforgeError for an unknown
        ``strategy``."""
        self.space = space
        self.buckets = tuple(buckets)
        self.measured: dict[Point, dict[str, float]] = {}
        self._seeds = [p for p in dict.fromkeys(seeds) if p in space]
        self._turn = itertools.cycle(self.buckets)
        self._dropped: set[str] = set()
        self._distributions = _distributions(space)
        self._numbers = {point: n for n, point in enumerate(space.points)}
        self._templates = list(dict.fromkeys(point.template for point in space.points))
        self._template_of = np.array([self._templates.index(point.template) for point in space.points])
        searched = _numbered(space)
        self._strategies = {
            bucket: strategies.make(strategy, searched, seed + n) for n, bucket in enumerate(self.buckets)
        }
        self._studies = {
            bucket: optuna.create_study(
                storage=storage,
                study_name=f"{space.task.problem.key} @ {bucket}{f' @ {name}' if name else ''}",
                load_if_exists=True,
            )
            for bucket in self.buckets
        }
        self._recorded = {bucket: self._restored(bucket) for bucket in self.buckets}

    def _restored(self, bucket: str) -> set[str]:
        """Names of the points that the bucket's study knows, after its strategy was told of them."""
        trials = {t.user_attrs[POINT]: t for t in self._studies[bucket].get_trials(deepcopy=False)
                  if POINT in t.user_attrs}
        if trials:
            for point, number in self._numbers.items():
                if (trial := trials.get(point.name)) is not None:
                    self._strategies[bucket].tell(number, math.exp(trial.value) if trial.value is not None else None)
        return set(trials)

    @property
    def exhausted(self) -> bool:
        return not self._seeds and all(p in self.measured or p.template in self._dropped for p in self.space.points)

    def propose(self, count: int) -> list[Point]:
        """Up to ``count`` new points: seeds first, then the strategy's, or all that is left of a tiny space."""
        proposed: list[Point] = []
        taken = set(self.measured)
        while len(proposed) < count:
            point = self._next(taken)
            if point is None:
                break
            taken.add(point)
            proposed.append(point)
        return proposed

    def _next(self, taken: set[Point]) -> Point | None:
        while self._seeds:
            seed = self._seeds.pop(0)
            if seed not in taken:
                return seed
        self._drop_slow_templates()
        free = np.array([template not in self._dropped for template in self._templates])[self._template_of]
        free[[self._numbers[p] for p in taken if p in self._numbers]] = False
        if not free.any():
            return None
        return self.space.points[self._strategies[next(self._turn)].ask(free)]

    def _drop_slow_templates(self) -> None:
        """A template that is far behind in every bucket at its own best so far gets no more of the time."""
        best = {b: min((s[b] for s in self.measured.values() if b in s), default=math.inf) for b in self.buckets}
        for template in {p.template for p in self.measured} - self._dropped:
            own = [s for p, s in self.measured.items() if p.template == template]
            hopeful = any(s[b] < FAR_BEHIND * best[b] for s in own for b in s)
            if not hopeful and (any(own) or len(own) >= FAILURES):
                self._dropped.add(template)

    def tell(self, point: Point, seconds: dict[str, float]) -> None:
        """What a point took per call in each bucket; a bucket that is missing failed there."""
        if point in self.measured:
            return
        self.measured[point] = seconds
        for bucket, study in self._studies.items():
            if point in self._numbers:
                self._strategies[bucket].tell(self._numbers[point], seconds.get(bucket))
            if point.name not in self._recorded[bucket]:
                self._recorded[bucket].add(point.name)
                study.add_trial(self._frozen(point, seconds.get(bucket)))

    def _frozen(self, point: Point, seconds: float | None) -> FrozenTrial:
        values = {"template": point.template, "rows": point.rows}
        values |= {f"{point.template}:{name}": value for name, value in point.params}
        known: dict[str, BaseDistribution] = {n: self._distributions[n] for n in values if n in self._distributions}
        return create_trial(
            params={name: values[name] for name in known},
            distributions=known,
            user_attrs={POINT: point.name},
            value=math.log(seconds) if seconds else None,
            state=TrialState.COMPLETE if seconds else TrialState.FAIL,
        )


def _numbered(space: Space) -> DiscreteSpace:
    """A parameter of one name is one coordinate whichever template has it: it most often means the same."""
    params = [dict(point.params) for point in space.points]
    columns: dict[str, list[Attr | None]] = {
        "template": [point.template for point in space.points],
        "rows": [point.rows for point in space.points],
    }
    for name in dict.fromkeys(name for own in params for name in own):
        columns[f"parameter {name}"] = [own.get(name) for own in params]
    return DiscreteSpace(columns)


def _distributions(space: Space) -> dict[str, CategoricalDistribution]:
    """One categorical per coordinate, over the values of legal points; parameters are named by their template."""
    values: dict[str, dict[Attr, None]] = {"template": {}, "rows": {}}
    for point in space.points:
        values["template"][point.template] = None
        values["rows"][point.rows] = None
        for name, value in point.params:
            values.setdefault(f"{point.template}:{name}", {})[value] = None
    return {
        name: CategoricalDistribution(sorted(found, key=str) if name == "template" else sorted(found, key=by_value))
        for name, found in values.items()
    }
