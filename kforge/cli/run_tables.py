"""A run's problems as a table: what ``kforge tune`` ends with and ``kforge runs show`` repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from kforge.tuner.run_view import RunView

_LEAST_SHARE = 0.005  # of a step: below it, a problem is only counted


def problem_table(run: RunView) -> Table | None:
    """Each problem at each bucket that takes some of a step, the heaviest first; None before anything was planned."""
    from rich.table import Table

    from kforge.tuner.report import problem_rows

    rows = problem_rows(run)
    if not rows:
        return None
    shares = sorted((bucket.share for task in run.tasks for bucket in task.buckets), reverse=True)
    shown = sum(share >= _LEAST_SHARE for share in shares)
    table = Table(title="what search, judge and engine said, the heaviest first")
    table.add_column("problem and bucket", overflow="fold", min_width=24)
    table.add_column("of a step, limit", justify="right")
    table.add_column("gain of the best")
    table.add_column("outcome", overflow="fold")
    for p in rows[:shown]:
        engine = f" (engine {p.engine})" if p.engine != "-" else ""
        table.add_row(
            f"{p.problem} {p.bucket}",
            f"{p.share}, {p.of_limit}",
            f"{p.micro}, {p.trials} tried",
            f"{p.outcome}{engine}",
        )
    if rest := len(rows) - shown:
        table.caption = f"and {rest} that take less than {100 * _LEAST_SHARE:g} % of a step"
    return table
