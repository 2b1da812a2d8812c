"""The search over one task's space: Optuna proposes, points are measured at all buckets at once.

One study per bucket, because the best parameters differ by bucket; a measured point is told to all of them, because
building it is what costs.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from kforge.core.workload import Attr
from kforge.tuner.points import Point, Space, difference
from kforge.tuner.study_file import open_study_file

POINT = "kforge_point"  # user attribute that names the point a trial stands for
FAR_BEHIND = 1.5  # times the best: more than any parameter of a template has been seen to make up
_STRIDE = 7919  # prime: points taken so are spread over a space
FAILURES = 3  # points that may fail before a template of which none ran is given up


def open_storage(folder: Path) -> JournalStorage:
    """Optuna's journal in the run's folder."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return open_study_file(folder / "study.journal")


class TaskSearch:
    """Proposes points of one space and learns from what they took. Never proposes a point twice."""

    def __init__(
        self, space: Space, storage: JournalStorage, buckets: Iterable[str], seeds: Iterable[Point], seed: int = 0,
        name: str = ""
    ):
        """``name`` tells the studies of several searches for one task apart."""
        self.space = space
        self.buckets = tuple(buckets)
        self.measured: dict[Point, dict[str, float]] = {}
        self._seeds = [p for p in dict.fromkeys(seeds) if p in space]
        self._turn = itertools.cycle(self.buckets)
        self._dropped: set[str] = set()
        self._distributions = _distributions(space)
        self._templates = cast(tuple[str, ...], self._distributions["template"].choices)
        self._studies = {
            bucket: optuna.create_study(
                storage=storage,
                sampler=self._sampler(seed + n),
                study_name=f"{space.task.problem.key} @ {bucket}{f' @ {name}' if name else ''}",
                load_if_exists=True,
            )
            for n, bucket in enumerate(self.buckets)
        }

    def _sampler(self, seed: int) -> optuna.samplers.TPESampler:
        """One per study: a grouped sampler keeps the search space of the study that it first saw."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate and group
            startup = min(10, len(self.space.points) // 4 + 1)
            return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=startup)

    @property
    def exhausted(self) -> bool:
        return not self._seeds and all(p in self.measured or p.template in self._dropped for p in self.space.points)

    def propose(self, count: int) -> list[Point]:
        """Up to ``count`` new points: seeds first, then Optuna's, or all that is left of a tiny space."""
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
        if all(template in self._dropped for template in self._templates):
            return None
        study = self._studies[next(self._turn)]
        trial = study.ask()
        wanted = self._suggested(trial)
        study.tell(trial, state=TrialState.FAIL)  # the real outcome is told for the point that is really measured
        if wanted in self.space and wanted not in taken and wanted.template not in self._dropped:
            return wanted  # as often as not, and a look at all points of a large space takes longer than a trial
        live = [p for p in self.space.points if p.template not in self._dropped and p not in taken]
        alike = [p for p in live if p.template == wanted.template]
        if not alike:  # nothing is left of that template, and others are not near it: anything
            return live[_STRIDE * len(taken) % len(live)] if live else None
        return min(alike, key=lambda p: difference(p, wanted))

    def _drop_slow_templates(self) -> None:
        """A template that is far behind in every bucket at its own best so far gets no more of the time."""
        best = {b: min((s[b] for s in self.measured.values() if b in s), default=math.inf) for b in self.buckets}
        for template in {p.template for p in self.measured} - self._dropped:
            own = [s for p, s in self.measured.items() if p.template == template]
            hopeful = any(s[b] < FAR_BEHIND * best[b] for s in own for b in s)
            if not hopeful and (any(own) or len(own) >= FAILURES):
                self._dropped.add(template)

    def _suggested(self, trial: optuna.Trial) -> Point:
        template = trial.suggest_categorical("template", self._templates)
        rows = cast(int, trial.suggest_categorical("rows", self._distributions["rows"].choices))
        params: dict[str, Attr] = {}
        for name, distribution in self._distributions.items():
            owner, _, param = name.partition(":")
            if owner == template and param:
                params[param] = cast(Attr, trial.suggest_categorical(name, distribution.choices))
        return Point(template, rows, tuple(sorted(params.items())))

    def tell(self, point: Point, seconds: dict[str, float]) -> None:
        """What a point took per call in each bucket; a bucket that is missing failed there."""
        if point in self.measured:
            return
        self.measured[point] = seconds
        for bucket, study in self._studies.items():
            if not any(t.user_attrs.get(POINT) == point.name for t in study.get_trials(deepcopy=False)):
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


def _distributions(space: Space) -> dict[str, CategoricalDistribution]:
    """One categorical per coordinate, over the values of legal points; parameters are named by their template."""
    values: dict[str, dict[Attr, None]] = {"template": {}, "rows": {}}
    for point in space.points:
        values["template"][point.template] = None
        values["rows"][point.rows] = None
        for name, value in point.params:
            values.setdefault(f"{point.template}:{name}", {})[value] = None
    return {
        name: CategoricalDistribution(sorted(found, key=str) if name == "template" else sorted(found, key=_order))
        for name, found in values.items()
    }


def _order(value: object) -> tuple[bool, float, str]:
    """Numbers by value, then texts."""
    return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, str(value))
