"""A run's journal as typed facts, for reports: of a run that is finished, going on, or was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.trial import Trial, TrialState, Verdict
from kforge.core.workload import Problem
from kforge.models.workloads import modes
from kforge.tuner.journal import Event, Line, RunFolder, trial_from_json, verdict_from_json
from kforge.tuner.layouts import LayoutGain, LayoutVerdict, changed
from kforge.tuner.options import TuneOptions
from kforge.tuner.promotion import EngineVerdict
from kforge.tuner.serving import Serving


@dataclass(frozen=True)
class TriedPoint:
    """A trial with its place in the run. ``number`` counts from 1 over the whole run."""

    number: int
    at: float  # seconds of budget
    task: str
    bucket: str  # key of the bucket's own workload
    rows: int
    trial: Trial

    @property
    def seconds(self) -> float | None:
        return self.trial.timing.seconds if self.trial.ok and self.trial.timing else None


@dataclass(frozen=True)
class BucketView:
    key: str
    share: float  # of a step, averaged over the modes
    limit: float  # seconds that the target's limits allow
    calls: tuple[tuple[str, float], ...]  # mode -> calls per step


@dataclass(frozen=True)
class TaskView:
    """A problem of the run. ``rows`` is None before its layout was chosen; ``accepted`` before it was settled, and
    ``before``, the panel height that the run found."""

    key: str
    points: int
    buckets: tuple[BucketView, ...]
    refused: tuple[str, ...]
    rows: int | None
    accepted: int | None
    before: int | None = None


@dataclass(frozen=True)
class Judged:
    task: str
    bucket: str
    rows: int
    verdict: Verdict


@dataclass(frozen=True)
class Rate:
    """Tokens/s of one kind of kernels at one setting; ``ratio`` to the kind before it, 0 for the first."""

    setting: str
    kernels: str
    median: float
    spread: float
    ratio: float
    ratio_spread: float


@dataclass(frozen=True)
class Roof:
    """The target's limits that the run was planned with, for the threads in use. Bandwidth 0: not recorded."""

    bandwidth: float
    peaks: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class RunView:
    id: str
    path: Path
    options: TuneOptions
    target: str
    finished: bool
    used_seconds: float
    roof: Roof
    tasks: tuple[TaskView, ...]
    tried: tuple[TriedPoint, ...]
    judged: tuple[Judged, ...]
    engine: tuple[EngineVerdict, ...]
    layouts: tuple[LayoutVerdict, ...]  # of changed panel heights that met the engine
    rates: tuple[Rate, ...]
    bandwidth: float  # bytes/s beside the table; 0 when not measured
    kept: int = 0  # problems that earlier runs had settled, so that this one did not tune them
    serving: Serving | None = None  # after the run; None while it goes on
    offline: bool = False  # for a chip that was not here: candidates were built and checked, none was timed
    identity: str = ""  # of the target

    @property
    def failures(self) -> Counter[str]:
        return Counter(p.trial.failure.kind.value for p in self.tried if p.trial.failure)

    @property
    def checked(self) -> int:
        """Candidates that were right at a bucket without their device, and so were not timed."""
        return sum(p.trial.state is TrialState.CHECKED for p in self.tried)

    @property
    def accepted(self) -> int:
        """Problems and buckets at which the judge accepted a kernel."""
        return len({(j.task, j.bucket) for j in self.judged if j.verdict.decision == "accepted"})

    def engine_of(self, task: str) -> list[EngineVerdict]:
        """Engine verdicts on a problem, whatever its layout."""
        return [v for v in self.engine if Problem.parse(v.problem).without_layout.key == task]


def view_of(path: Path) -> RunView:
    """The run in ``path``. Raises KforgeError when that is no run folder."""
    if not (path / "journal.jsonl").is_file():
        raise KforgeError(f"{path} is not a run folder (it has no journal.jsonl); see: kforge runs list")
    lines = RunFolder.lines_of(path)
    if not lines or lines[0].kind is not Event.STARTED:
        raise KforgeError(
            f"{path}/journal.jsonl does not begin with a run's options: the run has not begun, or is damaged"
        )
    started = lines[0].data
    tables, ends = _data(lines, Event.TABLE), _data(lines, Event.FINISHED)
    table = tables[-1] if tables else {"bandwidth": None, "figures": []}
    try:
        options = TuneOptions.from_json(started["options"])
        return RunView(
            id=path.resolve().name,
            path=path,
            options=options,
            target=started["target"],
            finished=bool(ends),
            used_seconds=lines[-1].at,
            roof=Roof(float(started.get("bandwidth", 0.0)), tuple(started.get("peaks", {}).items())),
            tasks=tuple(_tasks(lines)),
            tried=tuple(_tried(lines)),
            judged=tuple(
                Judged(d["task"], d["bucket"], d["rows"], verdict_from_json(d["verdict"]))
                for d in _data(lines, Event.VERDICT)
            ),
            engine=tuple(EngineVerdict(**d) for d in _data(lines, Event.PROMOTION)),
            layouts=tuple(_layouts(lines, options)),
            rates=tuple(_rate(f) for f in table["figures"]),
            bandwidth=table["bandwidth"]["median"] if table["bandwidth"] else 0.0,
            kept=ends[-1].get("kept", 0) if ends else 0,
            offline=bool(started.get("offline")),
            serving=Serving(**ends[-1]["serving"]) if ends and "serving" in ends[-1] else None,
            identity=str(started.get("identity", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise KforgeError(
            f"{path}/journal.jsonl was written by another kforge: {type(error).__name__} {error}"
        ) from None


def runs_in(folder: Path) -> list[Path]:
    """Run folders below ``folder``, oldest first (their names begin with the time)."""
    return sorted(p.parent for p in folder.glob("*/journal.jsonl"))


def last_measured(folder: Path, options: TuneOptions) -> str | None:
    """The newest run below ``folder`` that timed any kernel of the same model or operator, None when there is none."""
    for path in reversed(runs_in(folder)):
        lines = RunFolder.lines_of(path)
        if any(line.kind is Event.TRIAL for line in lines) and _subject(lines[0]) == (options.model, options.operator):
            return path.name
    return None


def _subject(first: Line) -> tuple[str, str]:
    """Model and operator of the run that begins with a line."""
    options = first.data.get("options", {})
    return options.get("model", ""), options.get("operator", "")


def _data(lines: Iterable[Line], kind: Event) -> list[dict]:
    return [line.data for line in lines if line.kind is kind]


def _tasks(lines: list[Line]) -> list[TaskView]:
    rows = {d["task"]: d["rows"] for d in _data(lines, Event.LAYOUT)}
    settled = {d["task"]: d for d in _data(lines, Event.SETTLED)}
    return [
        TaskView(
            d["task"],
            d["points"],
            tuple(BucketView(b["bucket"], b["share"], b["limit"], tuple(b["calls"].items())) for b in d["buckets"]),
            tuple(dict.fromkeys(f"{r['template']}: {r['reason']}" for r in d["refused"])),
            rows.get(d["task"]),
            settled.get(d["task"], {}).get("accepted"),
            settled.get(d["task"], {}).get("before"),
        )
        for d in _data(lines, Event.TASK)
    ]


def _layouts(lines: list[Line], options: TuneOptions) -> Iterator[LayoutVerdict]:
    """Of those that met the engine in every mode: fewer decide nothing."""
    ways = {mode.name for mode in modes(options.batches, (options.context,), options.prefill)}
    gains = [LayoutGain(**d) for d in _data(lines, Event.LAYOUT_GAIN)]
    for settled, before in changed(_data(lines, Event.SETTLED)):
        own = tuple(g for g in gains if g.problem == settled.problem)
        if ways <= {g.mode for g in own}:
            yield LayoutVerdict(settled.problem, settled.rows, before, own)


def _tried(lines: list[Line]) -> list[TriedPoint]:
    found = [line for line in lines if line.kind is Event.TRIAL]
    return [
        TriedPoint(
            n, line.at, line.data["task"], line.data["bucket"], line.data["rows"], trial_from_json(line.data["trial"])
        )
        for n, line in enumerate(found, 1)
    ]


def _rate(figure: Mapping) -> Rate:
    ratio = figure["ratio"] or {"median": 0.0, "spread": 0.0}
    return Rate(
        figure["setting"],
        figure["kernels"],
        figure["rate"]["median"],
        figure["rate"]["spread"],
        ratio["median"],
        ratio["spread"],
    )
