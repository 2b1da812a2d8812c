"""A run in a few lines of text: what ``kforge runs show`` begins with."""

from __future__ import annotations

from collections.abc import Sequence

from kforge.core.words import counted
from kforge.tuner.run_view import Rate, RunView, last_measured

RATIOS = "the median over rounds of the ratio within a round, so not quite the quotient of the medians"


def told(run: RunView) -> Sequence[str]:
    """Its state, what it did, its tokens/s, and what serves after it."""
    state = "finished" if run.finished else "unfinished"
    failed = sum(run.failures.values())
    table = "" if run.options.operator or run.offline else "; the table comes on top"
    lines = [
        f"{run.id}: {run.options.subject} on {run.target}, {state} after "
        f"{minutes(run.used_seconds)} (budget {minutes(run.options.budget_seconds)}{table})",
        f"  {counted(len(run.tried), 'trial')} of {counted(len(run.tasks), 'problem')}, {failed} failed; "
        + (f"{run.checked} right; built and checked, none timed: no such device was here" if run.offline else
           f"{len(run.judged)} judged, accepted at {counted(run.accepted, 'bucket')}"),
    ]
    if reason := unmeasured(run):
        lines.append(f"  {reason}")
    if run.rates:
        lines.append(f"  tokens/s; in brackets how many times the kernels before: {RATIOS}")
    for setting in dict.fromkeys(r.setting for r in run.rates):
        cells = (f"{r.kernels} {rate_cell(r)}" for r in run.rates if r.setting == setting)
        lines.append(f"  {setting}: {', '.join(cells)}")
    if run.serving:
        lines.append(f"  {run.serving.text}")
    return lines


def unmeasured(run: RunView) -> str:
    """Why there is nothing to show of a run that timed no kernel, and which of the same has more; "" of any other."""
    if run.tried:
        return ""
    other = last_measured(run.path.resolve().parent, run.options)
    elsewhere = f"; the last run that timed any: {other}" if other else ""
    if not run.finished:
        return f"No kernel has been timed yet{elsewhere}."
    settled = f"all {run.kept} problems" if run.kept else "all its problems"
    return f"No kernel was timed: earlier runs had settled {settled} (--retune tries again){elsewhere}."


def rate_cell(rate: Rate) -> str:
    """Tokens/s, and the ratio to the kernels before with its spread."""
    ratio = f" ({rate.ratio:.2f}x ± {100 * rate.ratio_spread:.1f} %)" if rate.ratio else ""
    return f"{rate.median:.1f}{ratio}"


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{int(seconds) // 60} min {int(seconds) % 60} s"
