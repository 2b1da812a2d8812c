"""A run's trials as recorded spaces: one for each problem and bucket."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kforge.core.recording import ABSENT, Origin, Recording, Result, Value, whole
from kforge.core.seed import Seed
from kforge.core.trial import Trial
from kforge.core.workload import Problem, Workload, attrs
from kforge.interchange.t4 import INVALIDITY
from kforge.tuner.run_view import RunView, TriedPoint

TEMPLATE, ROWS = "template", "rows"  # parameters that every point of kforge's has beside its template's own
SEEDS = 10  # of a search on another target, for one here to begin with


@dataclass(frozen=True)
class Recorded:
    """``left_out``: trials that say neither what a point took nor that it fails, in sentences."""

    spaces: tuple[Recording, ...]
    left_out: tuple[str, ...] = ()


def of_run(view: RunView, operator: str = "", bucket: str = "", device: str = "") -> Recorded:
    """Every problem and bucket at which the run tried something, in the run's order.

    ``operator``: only this one's; ``bucket``: only this point, such as ``M=8``; ``device``: what the target is, where
    more than its name is known.
    """
    groups: dict[tuple[str, str], list[TriedPoint]] = {}
    left: Counter[str] = Counter()
    for tried in view.tried:
        workload = Workload.parse(tried.bucket)
        if operator not in ("", workload.problem.operator) or bucket not in ("", workload.point):
            continue
        if reason := _silent(tried.trial):
            left[reason] += 1
            continue
        at = Workload(Problem.parse(tried.task), workload.dynamic)  # a bucket's own key may name one of its layouts
        groups.setdefault((tried.task, at.key), []).append(tried)
    made = []
    for (task, key), points in groups.items():
        origin = Origin(task, key, view.identity, view.target, view.id)
        made.append(_recording(points, origin, device or view.target))
    return Recorded(tuple(made), tuple(f"{count} {what}" for what, count in left.items()))


def by_template(recording: Recording) -> Iterator[Recording]:
    """The same by template, without what that template does not have: spaces whose points all have a value of each
    parameter of their own."""
    place = recording.parameters.index(TEMPLATE)
    for template in dict.fromkeys(r.values[place] for r in recording.results):
        own = [r for r in recording.results if r.values[place] == template]
        kept = [i for i in range(len(recording.parameters)) if any(r.values[i] != ABSENT for r in own)]
        yield replace(
            recording,
            kernel=f"{recording.kernel} {_short(str(template))}",
            parameters=tuple(recording.parameters[i] for i in kept),
            results=tuple(replace(r, values=tuple(r.values[i] for i in kept)) for r in own),
        )


def file_names(recordings: Sequence[Recording]) -> list[str]:
    """A plain name for each, all different, without an ending."""
    names: list[str] = []
    for recording in recordings:
        plain = re.sub(r"[^A-Za-z0-9_.=-]+", "_", recording.kernel).strip("_.")[:180]
        name, count = plain, 1
        while name in names:
            count += 1
            name = f"{plain}_{count}"
        names.append(name)
    return names


def _recording(points: Sequence[TriedPoint], origin: Origin, device: str) -> Recording:
    names = sorted({name for p in points for name, _ in p.trial.params})
    rows = [ROWS] if any(p.rows for p in points) else []
    parameters = (TEMPLATE, *rows, *names)
    results: dict[tuple[Value, ...], Result] = {}
    for point in points:
        values = _values(point, parameters)
        results.setdefault(values, _result(point, values))
    size = tuple(value for _, value in Workload.parse(origin.bucket).dynamic)
    return Recording(origin.bucket, device, size, parameters, tuple(results.values()), origin)


def _values(point: TriedPoint, parameters: Iterable[str]) -> tuple[Value, ...]:
    own: dict[str, Value] = {**dict(point.trial.params), TEMPLATE: point.trial.template}
    if point.rows:
        own[ROWS] = point.rows
    return tuple(own.get(name, ABSENT) for name in parameters)


def _silent(trial: Trial) -> str:
    """Why a trial says nothing of its point; "" where it does."""
    if trial.failure is not None:
        return "" if trial.failure.kind in INVALIDITY else "trials in which the harness failed, not the candidate"
    return "" if trial.timing is not None else "trials that were built and checked, and not timed"


def _result(point: TriedPoint, values: tuple[Value, ...]) -> Result:
    trial = point.trial
    if trial.failure is not None:
        return Result(values, None, trial.failure.kind, trial.failure.reason, (), trial.build_seconds)
    assert trial.timing is not None
    return Result(values, trial.timing.seconds, None, "", (), trial.build_seconds, trial.timing.spread)


def _short(template: str) -> str:
    return template.rsplit("/", 1)[-1].split(".", maxsplit=1)[0]


def seeds_of(recording: Recording, file: str, count: int = SEEDS) -> tuple[Seed, ...]:
    """The fastest points of a search of kforge's, for searches of the same problem on any target; none of a file that
    another tool wrote, whose parameters are no template's. Raises ValueError for an origin that names no problem."""
    if recording.origin is None or TEMPLATE not in recording.parameters:
        return ()
    at = Workload.parse(recording.origin.bucket)
    found = []
    for result in recording.fastest(count):
        params = {name: whole(value) for name, value in recording.point(result).items()}
        template, rows = str(params.pop(TEMPLATE)), params.pop(ROWS, 0)
        problem = at.problem.with_rows(int(rows)) if rows else at.problem
        found.append(
            Seed(problem.operator, problem.static, at.dynamic, template.split("/", 1)[0], template, attrs(params), "",
                 recording.device, f"{file} (T4)", result.seconds)
        )
    return tuple(found)
