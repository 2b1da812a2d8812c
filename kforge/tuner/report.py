"""One self-contained HTML file on a run: where its time went and what it brought. It opens without a network."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kforge.core.trial import FailureClass
from kforge.tuner.report_names import microseconds, short_bucket, short_problem, short_template
from kforge.tuner.report_outcomes import PROMOTED, bucket_outcome, engine_states
from kforge.tuner.report_text import RATIOS, minutes, rate_cell, unmeasured
from kforge.tuner.run_view import RunView, TaskView

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TEMPLATE = Path(__file__).with_name("report.html.j2")
_KINDS = {
    "torch f32": "torch, float32 weights",
    "torch bf16": "torch, bfloat16 weights",
    "default": "default kernels",
    "tuned": "tuned kernels",
}
_REASONS = 3  # distinct ones shown per failure class


@dataclass(frozen=True)
class RateRow:
    """One setting: a cell per kind of kernels, with tokens/s and the ratio to the kind before it."""

    setting: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class ProblemRow:
    """A problem at one bucket: what the search, the judge and the engine said."""

    problem: str
    bucket: str
    share: str
    trials: int
    first: str
    best: str
    limit: str
    of_limit: str
    micro: str
    engine: str
    outcome: str


@dataclass(frozen=True)
class FailureRow:
    kind: str
    count: int
    share: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class VerdictRow:
    problem: str
    bucket: str
    candidate: str
    incumbent: str
    decision: str
    text: str


@dataclass(frozen=True)
class LayoutRow:
    problem: str
    chosen: str
    times: str


@dataclass(frozen=True)
class Panel:
    """A plot with its heading."""

    heading: str
    plot: Markup


@dataclass(frozen=True)
class Section:
    """What another room tells of the run. ``style``: CSS that only it needs; ``sources``: the files that it is made
    from, for the last line of the page."""

    heading: str
    body: Markup
    style: str
    sources: str


def render(run: RunView, sections: Sequence[Section] = ()) -> str:
    """The HTML of a run's report, with what other rooms have to tell."""
    from kforge.tuner import report_figures as figures

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    drawn = _Plots()
    panels = [
        Panel(short_problem(t.key), drawn.draw(f)) for t in run.tasks if (f := figures.convergence(run, t)) is not None
    ]
    plots = {
        "roofline": figures.roofline(run),
        "judge": figures.judge_forest(run),
        "engine": figures.engine_forest(run),
    }
    placed = {name: drawn.draw(figure) if figure is not None else None for name, figure in plots.items()}
    return template.render(
        run=run,
        minutes=minutes,
        kinds=[k for k in _KINDS if any(r.kernels == k for r in run.rates)],
        names=_KINDS,
        rates=rate_rows(run),
        ratios=RATIOS,
        problems=problem_rows(run),
        failures=failure_rows(run),
        verdicts=verdict_rows(run),
        layouts=layout_rows(run),
        panels=panels,
        plots=placed,
        promoted=sum(state == PROMOTED for state in engine_states(run).values()),
        unmeasured=unmeasured(run),
        plotly=drawn.library(),
        failed=sum(run.failures.values()),
        sections=sections,
    )


def rate_rows(run: RunView) -> list[RateRow]:
    return [
        RateRow(
            setting,
            tuple(rate_cell(r) for kind in _KINDS for r in run.rates if (r.setting, r.kernels) == (setting, kind)),
        )
        for setting in dict.fromkeys(r.setting for r in run.rates)
    ]


def problem_rows(run: RunView) -> list[ProblemRow]:
    """The heaviest problem first."""
    pairs = [(task, bucket) for task in run.tasks for bucket in task.buckets]
    rows = []
    for task, bucket in sorted(pairs, key=lambda pair: -pair[1].share):
        timed = [p.seconds for p in run.tried if p.bucket == bucket.key and p.seconds]
        best = min(timed, default=0.0)
        verdicts = [j.verdict for j in run.judged if j.bucket == bucket.key]
        won = max((v for v in verdicts if v.decision == "accepted"), key=lambda v: v.gain, default=None)
        told = won or max(verdicts, key=lambda v: v.gain, default=None)  # nothing won: how near the best finalist came
        micro = f"{100 * told.gain:+.1f} % [{100 * told.lower:+.1f}, {100 * told.upper:+.1f}]" if told else "-"
        modes = dict(bucket.calls)
        engine = [v for v in run.engine_of(task.key) if won and (v.mode in modes or not modes)]
        rows.append(
            ProblemRow(
                short_problem(task.key),
                short_bucket(bucket.key),
                f"{100 * bucket.share:.1f} %",
                sum(p.bucket == bucket.key for p in run.tried),
                microseconds(timed[0]) if timed else "-",
                microseconds(best) if best else "-",
                microseconds(bucket.limit) if bucket.limit else "-",
                f"{100 * bucket.limit / best:.0f} %" if best and bucket.limit else "-",
                micro,
                "; ".join(f"{v.mode} {100 * v.gain:+.1f} %" for v in engine) or "-",
                bucket_outcome(run, task, bucket),
            )
        )
    return rows


def failure_rows(run: RunView) -> list[FailureRow]:
    rows = []
    for kind, count in run.failures.most_common():
        reasons = dict.fromkeys(
            f"{short_template(p.trial.template)}: {p.trial.failure.reason}"
            for p in run.tried
            if p.trial.failure and p.trial.failure.kind == FailureClass(kind)
        )
        rows.append(FailureRow(kind, count, f"{100 * count / len(run.tried):.1f} %", tuple(reasons)[:_REASONS]))
    return rows


def verdict_rows(run: RunView) -> list[VerdictRow]:
    return [
        VerdictRow(
            short_problem(j.task),
            short_bucket(j.bucket),
            j.verdict.candidate_hash,
            j.verdict.incumbent_hash,
            j.verdict.decision.value,
            j.verdict.text,
        )
        for j in run.judged
    ]


def layout_rows(run: RunView) -> list[LayoutRow]:
    """Panel heights tried, with each one's best time in every bucket."""
    rows = []
    for task in run.tasks:
        heights = sorted({p.rows for p in run.tried if p.task == task.key and p.rows})
        if not heights:
            continue
        cells = []
        for height in heights:
            bests = []
            for bucket in task.buckets:
                timed = [p.seconds for p in run.tried if p.bucket == bucket.key and p.rows == height and p.seconds]
                bests.append(microseconds(min(timed)) if timed else "-")
            cells.append(f"{height}: {' / '.join(bests)} us")
        buckets = " / ".join(short_bucket(b.key) for b in task.buckets)
        rows.append(LayoutRow(short_problem(task.key), _chosen(run, task), f"{'; '.join(cells)}  ({buckets})"))
    return rows


def _chosen(run: RunView, task: TaskView) -> str:
    """The layout that search chose, and what the engine said of it where it was another than before."""
    engine = [v.text for v in run.layouts if v.problem == task.key]
    return engine[0] if engine else str(task.rows) if task.rows else "not yet"


class _Plots:
    """Numbers plots, and brings Plotly's library when there is any."""

    def __init__(self) -> None:
        self._count = 0

    def draw(self, figure: go.Figure) -> Markup:
        self._count += 1
        name = f"plot{self._count}"
        # "<" would let a name in the data end the script element.
        data = re.sub("<", r"\\u003c", str(figure.to_json()))
        return Markup(f'<div id="{html.escape(name)}" class="plot"></div><script>draw("{name}", {data});</script>')

    def library(self) -> Markup:
        if not self._count:
            return Markup("")
        from plotly.offline import get_plotlyjs

        return Markup(get_plotlyjs())


def write_report(run: RunView, out: Path, sections: Sequence[Section] = ()) -> Path:
    """Writes the report; raises KforgeError when the file cannot be written."""
    from kforge.core.errors import KforgeError

    text = render(run, sections)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KforgeError(f"cannot write {out}: {error.strerror}; choose another file with -o") from error
    return out
