"""The plots of a run's report. Colours and greys are chosen to read on light and dark grounds alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kforge.core.trial import Decision
from kforge.core.workload import Workload
from kforge.operators import get
from kforge.tuner.report_names import microseconds, short_bucket, short_problem, short_template
from kforge.tuner.run_view import RunView, TaskView, TriedPoint

PALETTE = ("#4c8dd9", "#e0843a", "#3fa877", "#c95f9a", "#8b74d6", "#b39a2f", "#48a9b8", "#d9605c", "#7f8c5a", "#9a7158")
GREY, GRID = "#8a8f98", "rgba(138,143,152,0.22)"
GOOD, BAD, OPEN = "#3fa877", "#d9605c", "#b39a2f"


def roofline(run: RunView) -> go.Figure | None:
    """Every trial that reads memory: operations per streamed byte against operations/s. None when there is none."""
    figure = go.Figure()
    kinds: dict[str, None] = {}
    xs: list[float] = []
    tasks = list(dict.fromkeys(p.task for p in run.tried))
    for index, task in enumerate(tasks):
        points = [_placed(p) for p in run.tried if p.task == task and p.seconds]
        shown = [p for p in points if p is not None]
        if not shown:
            continue
        kinds |= dict.fromkeys(kind for p in shown for kind in p.kinds)
        xs += [p.intensity for p in shown]
        figure.add_scatter(
            x=[p.intensity for p in shown],
            y=[p.rate / 1e9 for p in shown],
            mode="markers",
            name=short_problem(task),
            text=[p.text for p in shown],
            hovertemplate="%{text}<extra></extra>",
            marker={"size": 7, "opacity": 0.65, "color": PALETTE[index % len(PALETTE)]},
        )
    if not xs:
        return None
    if run.roof.bandwidth:
        peaks = {n: v for n, v in run.roof.peaks if n in kinds and v}
        _draw_roof(figure, run.roof.bandwidth, peaks, min(xs), max(xs))
    figure.update_xaxes(type="log", dtick="D2", title="arithmetic intensity, operations per byte read from memory")
    figure.update_yaxes(type="log", dtick="D2", title="Gop/s")
    return _styled(figure, 460)


class _Placed:
    """A trial's place on the roofline plot."""

    def __init__(self, point: TriedPoint, streamed: int, operations: tuple[tuple[str, int], ...], seconds: float):
        total = sum(n for _, n in operations)
        self.intensity, self.rate = total / streamed, total / seconds
        self.kinds = tuple(kind for kind, _ in operations)
        limit = point.trial.roofline_seconds
        share = f", {100 * limit / seconds:.0f} % of the limit" if limit else ""
        self.text = (
            f"{short_problem(point.task)} {short_bucket(point.bucket)}<br>{described(point)}<br>"
            f"{microseconds(seconds)} us{share}"
        )


def _placed(point: TriedPoint) -> _Placed | None:
    workload = Workload.parse(point.trial.workload)
    try:
        cost = get(workload.problem.operator).cost(workload)
    except (KeyError, ValueError):  # an operator that this version does not have
        return None
    if not cost.streamed_bytes or not cost.operations or not point.seconds:
        return None
    return _Placed(point, cost.streamed_bytes, cost.operations, point.seconds)


def _draw_roof(figure: go.Figure, bandwidth: float, peaks: dict[str, float], low: float, high: float) -> None:
    top = max(peaks.values(), default=bandwidth * high)
    corner = top / bandwidth
    figure.add_scatter(
        x=[low / 2, corner],
        y=[bandwidth * low / 2 / 1e9, top / 1e9],
        mode="lines",
        showlegend=False,
        line={"color": GREY, "width": 2},
        hoverinfo="skip",
    )
    figure.add_annotation(
        x=math.log10(low),
        y=math.log10(bandwidth * low / 1e9),
        text=f"{bandwidth / 1e9:.1f} GB/s",
        showarrow=False,
        xanchor="right",
        yanchor="bottom",
        font={"color": GREY, "size": 12},
    )
    for name, peak in peaks.items():
        right = max(2 * high, 2 * corner)
        figure.add_scatter(
            x=[peak / bandwidth, right],
            y=[peak / 1e9] * 2,
            mode="lines",
            showlegend=False,
            line={"color": GREY, "width": 2, "dash": "dot"},
            hoverinfo="skip",
        )
        figure.add_annotation(
            x=math.log10(right),
            y=math.log10(peak / 1e9),
            text=f"{name} {peak / 1e9:.0f} Gop/s",
            showarrow=False,
            xanchor="right",
            yanchor="bottom",
            font={"color": GREY, "size": 12},
        )


def convergence(run: RunView, task: TaskView) -> go.Figure | None:
    """Best so far over the limit, per bucket, against the trial's number in the run; 1 is the limit.

    Where no limit is known, over the first time instead. None when nothing was timed.
    """
    figure = go.Figure()
    limited = True
    for index, bucket in enumerate(task.buckets):
        points = [p for p in run.tried if p.bucket == bucket.key and p.seconds]
        if not points:
            continue
        limited &= bucket.limit > 0
        unit = bucket.limit or points[0].seconds or 1.0
        colour = PALETTE[index % len(PALETTE)]
        best, falling = math.inf, []
        for point in points:
            best = min(best, point.seconds or math.inf)
            falling.append(best / unit)
        name = short_bucket(bucket.key)
        figure.add_scatter(
            x=[p.number for p in points],
            y=[(p.seconds or 0) / unit for p in points],
            mode="markers",
            showlegend=False,
            text=[f"{name}: {described(p)}<br>{microseconds(p.seconds or 0)} us, {p.at:.0f} s on" for p in points],
            hovertemplate="%{text}<extra></extra>",
            marker={"size": 5, "opacity": 0.45, "color": colour},
        )
        figure.add_scatter(
            x=[p.number for p in points],
            y=falling,
            mode="lines",
            name=name,
            hoverinfo="skip",
            line={"shape": "hv", "width": 2, "color": colour},
        )
    if not figure.data:
        return None
    if limited:
        figure.add_hline(y=1, line={"color": GREY, "dash": "dot", "width": 1.5})
        # A place on a logarithmic axis is the logarithm.
        figure.add_annotation(
            x=1,
            xref="x domain",
            y=0,
            text="limit",
            showarrow=False,
            xanchor="right",
            yanchor="bottom",
            font={"size": 11},
        )
    figure.update_yaxes(type="log", title="time over limit" if limited else "time over first", dtick="D2")
    figure.update_xaxes(title="trial of the run")
    return _styled(figure, 280)


@dataclass(frozen=True)
class _Bar:
    """A gain with its confidence interval, as ratios minus one."""

    label: str
    gain: float
    lower: float
    upper: float
    colour: str


def judge_forest(run: RunView) -> go.Figure | None:
    """Each verdict's gain over its incumbent with its confidence interval."""
    bars = [
        _Bar(
            f"{short_problem(j.task)} {short_bucket(j.bucket)} {j.verdict.candidate_hash[:6]}",
            j.verdict.gain,
            j.verdict.lower,
            j.verdict.upper,
            _colour(j.verdict.decision),
        )
        for j in run.judged
    ]
    return _forest(bars, "gain over the incumbent, %")


def engine_forest(run: RunView) -> go.Figure | None:
    """What the engine gains by each problem's new kernels, per mode."""
    bars = [
        _Bar(f"{short_problem(v.problem)}, {v.mode}", v.gain, v.lower, v.upper, GOOD if v.promotes else BAD)
        for v in run.engine
    ]
    return _forest(bars, "gain of the engine, %")


def described(point: TriedPoint) -> str:
    """A trial's coordinates: template, layout, parameters."""
    values = " ".join(f"{k}={v}" for k, v in point.trial.params)
    return f"{short_template(point.trial.template)} {f'rows={point.rows} ' if point.rows else ''}{values}".strip()


def _colour(decision: Decision) -> str:
    return {Decision.ACCEPTED: GOOD, Decision.REJECTED: BAD, Decision.UNDECIDED: OPEN}[decision]


def _forest(bars: Sequence[_Bar], title: str) -> go.Figure | None:
    bars = [b for b in bars if all(map(math.isfinite, (b.gain, b.lower, b.upper)))]
    if not bars:
        return None
    figure = go.Figure()
    figure.add_scatter(
        x=[100 * b.gain for b in bars],
        y=list(range(len(bars))),
        mode="markers",
        showlegend=False,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [100 * (b.upper - b.gain) for b in bars],
            "arrayminus": [100 * (b.gain - b.lower) for b in bars],
            "color": GREY,
            "thickness": 1.5,
        },
        text=[f"{b.label}<br>{100 * b.gain:+.1f} % [{100 * b.lower:+.1f}, {100 * b.upper:+.1f}]" for b in bars],
        hovertemplate="%{text}<extra></extra>",
        marker={"size": 9, "color": [b.colour for b in bars]},
    )
    figure.add_vline(x=0, line={"color": GREY, "width": 1, "dash": "dot"})
    figure.update_yaxes(
        tickvals=list(range(len(bars))), ticktext=[b.label for b in bars], range=[len(bars) - 0.4, -0.6], showgrid=False
    )
    figure.update_xaxes(title=title, zeroline=False)
    return _styled(figure, 110 + 26 * len(bars))


def _styled(figure: go.Figure, height: int) -> go.Figure:
    figure.update_layout(
        height=height,
        margin={"l": 60, "r": 16, "t": 12, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "yanchor": "top", "y": -0.22, "x": 0},
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(gridcolor=GRID, linecolor=GRID, zerolinecolor=GRID, automargin=True)
    figure.update_yaxes(gridcolor=GRID, linecolor=GRID, zerolinecolor=GRID, automargin=True)
    return figure
