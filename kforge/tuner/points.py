"""The search space of a problem: every legal point of every template that fits, in every layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kforge.backends.templates import Template
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.seed import Seed
from kforge.core.target import Target
from kforge.core.trial import Candidate
from kforge.core.workload import Attr, attrs, stable_hash
from kforge.operators import get
from kforge.tuner.plan import Task
from kforge.tuner.prediction import predicted_seconds


@dataclass(frozen=True)
class Point:
    """One candidate's coordinates."""

    template: str
    rows: int
    params: tuple[tuple[str, Attr], ...]

    @property
    def name(self) -> str:
        values = " ".join(f"{k}={v}" for k, v in self.params)
        return f"{self.template.rsplit('/', 1)[-1].split('.')[0]} {f'rows={self.rows} ' if self.rows else ''}{values}"


class Space:
    """Enumerated points of one task: illegal points do not exist, duplicates are known by their point."""

    def __init__(self, task: Task, templates: Sequence[Template], target: Target, untuned: str = ""):
        """``untuned``: path of the template that serves untuned where it fits; "": the most demanding one does."""
        self.task = task
        self.target = target
        self.refused: list[tuple[str, str]] = []  # template, why it does not fit
        self._untuned = untuned
        self._templates: dict[tuple[str, int], Template] = {}
        self._rendered: dict[tuple[Point, str], Candidate] = {}
        self.points: list[Point] = []
        self.defaults: list[Point] = []
        for template in templates:
            name = str(template.path)
            for rows in task.rows_choices():
                problem = task.at(rows)
                if reason := template.applies(problem, target):
                    self.refused.append((name, reason))
                    continue
                self._templates[name, rows] = template
                self.points += [Point(name, rows, attrs(p)) for p in template.space(problem, target)]
                self.defaults.append(Point(name, rows, attrs(template.defaults(problem, target))))
        self._index = {point: i for i, point in enumerate(self.points)}

    @property
    def templates_hash(self) -> str:
        """Of the templates that compete: what was settled with other templates must be settled again."""
        return stable_hash(sorted({(t.hash, rows) for (_, rows), t in self._templates.items()}))

    def __contains__(self, point: Point) -> bool:
        return point in self._index

    @property
    def templates(self) -> list[Template]:
        """Those that fit, in some layout."""
        return list({str(t.path): t for t in self._templates.values()}.values())

    @property
    def default_rows(self) -> int:
        """The panel height that serves untuned; 0 where there is no packed weight."""
        return DEFAULT_ROWS if self.task.packed else 0

    @property
    def layouts(self) -> list[int]:
        """Panel heights in which some template serves."""
        return sorted({p.rows for p in self.defaults})

    def default(self, rows: int) -> Point:
        """What serves untuned in this layout, at its defaults."""
        mine = [p for p in self.defaults if p.rows == rows]
        return max(mine, key=lambda p: (p.template == self._untuned, self._templates[p.template, rows].demand))

    def seeded(self, seeds: Iterable[Seed], rows: int) -> list[Point]:
        """What the seeds' parameters are here, those found nearest to the task's buckets first: points of every
        template that has them all, what a seed does not say being as by default. What is no legal point is left out: a
        seed is not moved to its nearest."""
        found: dict[Point, None] = {}
        for seed in sorted(seeds, key=self._distance):
            for (name, height), template in self._templates.items():
                if height != rows or template.backend != seed.backend or seed.template not in ("", name):
                    continue
                default = template.defaults(self.task.at(rows), self.target)
                point = Point(name, rows, attrs({**default, **dict(seed.params)}))
                if dict(seed.params).keys() <= default.keys() and point in self:
                    found[point] = None
        return list(found)

    def _distance(self, seed: Seed) -> float:
        """The smallest factor, as a logarithm, by which an axis differs from where the seed was found."""
        at = dict(seed.bucket)
        return min(max((abs(math.log(max(n, 1) / max(at.get(a, 1), 1))) for a, n in b.workload.dynamic), default=0.0)
                   for b in self.task.buckets)

    def predicted(self, point: Point, threads: int) -> float:
        """Seconds of one call at each bucket together, before anything was measured; see ``prediction``."""
        template = self._templates[point.template, point.rows]
        workloads = [self.task.workload(bucket, point.rows) for bucket in self.task.buckets]
        costs = [get(w.problem.operator).cost(w) for w in workloads]
        return sum(predicted_seconds(template, cost, self.target, threads) for cost in costs)

    def render(self, point: Point, proposer: str = "builtin") -> Candidate:
        """Kept: what is not shipped is rendered in a process of its own, and asked for again and again."""
        if (known := self._rendered.get((point, proposer))) is not None:
            return known
        template = self._templates[point.template, point.rows]
        made = template.render(self.task.at(point.rows), self.target, dict(point.params), proposer=proposer)
        self._rendered[point, proposer] = made
        return made


def difference(a: Point, b: Point) -> float:
    """Number of coordinates that differ, another template weighing most."""
    laid = 2.0 * (a.rows != b.rows)
    if a.template == b.template:  # then the parameters are the same, in the same order
        return laid + sum(mine != other for mine, other in zip(a.params, b.params, strict=True))
    mine, other = dict(a.params), dict(b.params)
    return 10.0 + laid + sum(mine.get(k) != other.get(k) for k in mine.keys() | other.keys())
