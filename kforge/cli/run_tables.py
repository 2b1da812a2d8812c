"""A run's problems as a table: what ``kforge tune`` ends with and ``kforge runs show`` repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from kforge.tuner.run_view import RunView

def problem_table(run: RunView) -> Table | None:
    """Each problem at each bucket, the heaviest first; None before anything was planned."""
    from rich.table import Table

    from kforge.tuner.report import problem_rows

    rows = problem_rows(run)
    if not rows:
        return None
    table = Table(title="what search, judge and engine said, the heaviest first", show_lines=True)
    table.add_column("problem", min_width=24, overflow="fold")
    for column in ("of a step", "of limit"):
        table.add_column(column, justify="right")
    for column in ("gain of the best", "in the engine", "outcome"):
        table.add_column(column)
    for p in rows:
        gain = f"{p.micro}\n{p.trials} trials"
        table.add_row(f"{p.problem}\n{p.bucket}", p.share, p.of_limit, gain, p.engine, p.outcome)
    return table
