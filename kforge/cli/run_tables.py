"""A run as tables: what ``kforge tune`` ends with and ``kforge runs show`` repeats."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from kforge.cli.tables import folding
from kforge.core.words import counted
from kforge.core.workload import Workload

if TYPE_CHECKING:
    from rich.table import Table

    from kforge.engine.measure import Figure
    from kforge.tuner.promotion import EngineVerdict
    from kforge.tuner.run_view import RunView
    from kforge.tuner.serving import Serving

_LEAST_SHARE = 0.005  # of a step: below it, a problem is only counted
DISTURBED = ("something else ran while the limit was measured, or the machine has become faster since; kforge target "
             "probe measures it again")


def rate_table(figures: Sequence[Figure], title: str, label: Callable[[str], str] = str) -> Table:
    """Tokens/s of kinds of kernels, named by ``label``, beside each other at some settings."""
    from kforge.tuner.report_text import RATIOS

    columns = ("setting", "kernels", "tokens/s", "spread", "over the row above", "Python")
    table = folding(*columns, right=columns[2:], title=title)
    for setting, rows in groupby(figures, key=lambda figure: figure.setting):
        for figure in rows:
            ratio = figure.ratio
            table.add_row(
                setting,
                label(figure.kernels),
                f"{figure.rate.median:.1f}",
                f"{100 * figure.rate.spread:.1f} %",
                f"{ratio.median:.2f}x ± {100 * ratio.spread:.1f} %" if ratio else "",
                f"{100 * figure.python_share:.1f} %",
            )
            setting = ""
        table.add_section()
    table.caption = (f"over the row above: {RATIOS}; context: what the cache holds from the first step timed to the "
                     "last, nothing at the start of a prefill")
    return table


def problem_table(run: RunView) -> Table | None:
    """Each problem at each bucket that takes some of a step, the heaviest first; None before anything was planned."""
    from kforge.tuner.report import problem_rows
    from kforge.tuner.report_outcomes import PROMOTED

    rows = problem_rows(run)
    if not rows:
        return None
    shares = sorted((bucket.share for task in run.tasks for bucket in task.buckets), reverse=True)
    shown = sum(share >= _LEAST_SHARE for share in shares)
    alone = bool(run.options.operator)
    said = "search and judge" if alone else "search, judge and engine"
    share = "weight, limit" if alone else "of a step, limit"
    table = folding("problem and bucket", share, "gain of the best", "outcome",
                    title=f"what {said} said, the heaviest first")
    for p in rows[:shown]:
        engine = f" (engine {p.engine})" if p.outcome == PROMOTED and not alone else ""
        table.add_row(
            f"{p.problem} {p.bucket}",
            f"{p.share}, {p.of_limit}",
            f"{p.micro}, {p.trials} tried",
            f"{p.outcome}{engine}",
        )
    if rest := len(rows) - shown:
        table.caption = f"and {rest} that take less than {100 * _LEAST_SHARE:g} % of a step"
    return table


def limit_lines(run: RunView) -> list[str]:
    """That a kernel was faster than the limits allow, which only limits can be that were measured too low."""
    best = {b.key: min((p.seconds for p in run.tried if p.bucket == b.key and p.seconds), default=0.0)
            for task in run.tasks for b in task.buckets}
    above = sum(0 < best[b.key] < b.limit for task in run.tasks for b in task.buckets)
    return [f"{counted(above, 'bucket')} above 100 % of the limit: {DISTURBED}"] if above else []


def engine_table(verdicts: Sequence[EngineVerdict]) -> Table:
    """What each problem's kernels give the engine, mode by mode; what became of them is said once, elsewhere."""
    from kforge.tuner.report_names import short_problem

    columns = ("problem", "mode", "gain", "at least", "calls", "in this mode")
    table = folding(*columns, right=columns[2:5], title="what each tuned kernel gives the engine (left out in turn)")
    for problem, rows in groupby(sorted(verdicts, key=lambda v: v.problem), key=lambda v: v.problem):
        name = short_problem(problem)
        for v in rows:
            table.add_row(name, v.mode, f"{100 * v.gain:+.1f} %", f"{100 * v.lower:+.1f} %", str(v.calls), v.word)
            name = ""
        table.add_section()
    return table


def engine_lines(run: RunView) -> list[str]:
    """A line for each problem with accepted kernels: promoted, or why not."""
    from kforge.tuner.report_names import short_problem
    from kforge.tuner.report_outcomes import engine_states

    return [f"{short_problem(key)}: {state}" for key, state in engine_states(run).items()]


def python_lines(run: RunView, serving: Serving) -> list[str]:
    """How a tuned kernel of an imported operator is found from Python, where one serves; no engine calls it."""
    if not run.options.operator or not serving.kernels:
        return []
    axes = [Workload.parse(bucket.key).axes for task in run.tasks for bucket in task.buckets]
    return [
        "In Python (docs/kernels.md, section 6, goes on and calls it on arrays):",
        "    from kforge.registry.ask import ask, open_snapshot",
        f'    kernel = ask(open_snapshot(), "{run.options.operator}", {json.dumps(axes[0] if axes else {})}).kernel',
    ]
