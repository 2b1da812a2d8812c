"""One template's parameters searched at one workload, with the tuner's own search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kforge.agent.failures import told
from kforge.backends.building import build
from kforge.backends.templates import Template
from kforge.core.drafts import draft_folder
from kforge.core.trial import Candidate, Trial
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.mcp import measured
from kforge.mcp.failures import bad_input
from kforge.mcp.subjects import PROPOSER
from kforge.tuner.measure import CUT_RATIO
from kforge.tuner.plan import Bucket, Task
from kforge.tuner.points import Point, Space
from kforge.tuner.search import TaskSearch, open_storage

_BATCH = 4  # points that are built side by side
_BEST = 10
_MOST_POINTS = 20_000  # a search looks at hundreds


@dataclass(frozen=True)
class _InOneLayout(Task):
    """A task whose panel height is given."""

    rows: int

    def rows_choices(self) -> tuple[int, ...]:
        return (self.rows,)


@dataclass(frozen=True)
class _Tried:
    point: Point
    trial: Trial

    @property
    def seconds(self) -> float:
        """Of a call; 0 where it failed, or was too short to be told."""
        return self.trial.timing.seconds if self.trial.ok and self.trial.timing else 0.0


def tune(
    template: Template,
    workload: Workload,
    harness: Harness,
    *,
    trials: int,
    seconds: float,
    tell: Callable[[str], None],
) -> measured.Tuned:
    """Up to ``trials`` points, none begun after ``seconds``; the declared defaults come first.

    Raises KforgeError for a template that does not fit.
    """
    ends = time.monotonic() + seconds
    space = _space(template, workload, harness)
    default = space.default(space.default_rows if space.default_rows in space.layouts else space.layouts[0])
    key = workload.key
    done: list[_Tried] = []
    stopped = ""
    with draft_folder() as folder:
        search = TaskSearch(space, open_storage(folder), [key], [default])
        while not stopped:
            points = search.propose(min(_BATCH, trials - len(done)))
            if not points:
                break
            tell(f"{len(done)} of {trials} trials, building {len(points)} points{_so_far(done)}")
            candidates = [space.render(point, PROPOSER) for point in points]
            _prebuild(candidates, harness)
            for point, candidate in zip(points, candidates, strict=True):
                tell(f"{len(done)} of {trials} trials, measuring {point.name}{_so_far(done)}")
                best = _best(done)
                trial = harness.evaluate(candidate, workload, cut_above=CUT_RATIO * best if best else None)
                done.append(tried := _Tried(point, trial))
                search.tell(point, {key: tried.seconds} if tried.seconds else {})
                if stopped := _spent(len(done), trials, ends):
                    break
    return _answer(
        template,
        workload,
        space,
        done,
        stopped or "every point that was worth it is measured",
        default,
        harness.limit_seconds(workload),
    )


def _space(template: Template, workload: Workload, harness: Harness) -> Space:
    problem = workload.problem
    rows = problem.rows
    task = _InOneLayout(problem.without_layout, (Bucket(workload, ()),), rows)
    space = Space(task, [template], harness.target)
    if not space.points:
        raise bad_input(f"{template.path} does not fit {problem.key}: {'; '.join(r for _, r in space.refused)}")
    if len(space.points) > _MOST_POINTS:
        raise bad_input(f"{template.path} has {len(space.points)} legal points; a search takes {_MOST_POINTS}")
    return space


def _prebuild(candidates: Sequence[Candidate], harness: Harness) -> None:
    """Compiled before anything is timed: a compiler beside a measurement would disturb it."""
    with ThreadPoolExecutor(max_workers=harness.target.cores) as pool:
        list(pool.map(lambda candidate: build(candidate, harness.target), candidates))


def _spent(done: int, trials: int, ends: float) -> str:
    if done >= trials:
        return "all trials are used"
    return "the time is used" if time.monotonic() > ends else ""


def _best(done: Sequence[_Tried]) -> float:
    return min((t.seconds for t in done if t.seconds), default=0.0)


def _so_far(done: Sequence[_Tried]) -> str:
    best = _best(done)
    return f", best {1e6 * best:.2f} us" if best else ""


def _answer(
    template: Template,
    workload: Workload,
    space: Space,
    done: Sequence[_Tried],
    stopped: str,
    default: Point,
    limit: float,
) -> measured.Tuned:
    ran = sorted((t.seconds, n) for n, t in enumerate(done) if t.seconds)
    at_default = [seconds for seconds, n in ran if done[n].point == default]
    best = [_point(done[n], seconds) for seconds, n in ran[:_BEST]]
    failures: dict[str, list[_Tried]] = {}
    for tried in done:
        if tried.trial.failure is not None:
            failures.setdefault(tried.trial.failure.kind.value, []).append(tried)
    return measured.Tuned(
        template=template.path,
        workload=workload.key,
        points=len(space.points),
        trials=len(done),
        stopped=stopped,
        untold=sum(t.trial.ok and not t.seconds for t in done),
        default_seconds=at_default[0] if at_default else None,
        limit_seconds=limit,
        best=best,
        failures=[_failures(kind, group) for kind, group in failures.items()],
    )


def _point(tried: _Tried, seconds: float) -> measured.TunedPoint:
    spread = tried.trial.timing.spread if tried.trial.timing else 0.0
    params, candidate = dict(tried.point.params), tried.trial.candidate_hash
    return measured.TunedPoint(params=params, seconds=seconds, spread=spread, candidate=candidate)


def _failures(kind: str, group: Sequence[_Tried]) -> measured.FailedPoints:
    first = group[0]
    reason = told(first.trial.failure) if first.trial.failure else ""
    return measured.FailedPoints(kind=kind, count=len(group), params=dict(first.point.params), reason=reason)
