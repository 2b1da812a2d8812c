"""Tables of which nothing is cut off, in a narrow terminal and in a log: what does not fit goes on in the next line."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_LEAST = 8  # letters of a column that gives way
_FRAME = 3  # cells of a column's border and padding


def folding(*columns: str, right: Collection[str] = (), whole: Collection[str] = (), title: str | None = None) -> Table:
    """A table that fits any width, with cells shown letter by letter: no markup, no control characters. ``right``:
    columns of figures. ``whole``: columns of names that people copy, never broken (``show`` makes room for them)."""
    from rich.table import Table
    from rich.text import Text

    from kforge.core.words import plain

    class Plain(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(Text(plain(cell)) if isinstance(cell, str) else cell for cell in cells), **options)

    table = Plain(title=title)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in right else "left",
                         no_wrap=column in whole)
    return table


def show(table: Table) -> None:
    """Prints it. Where a terminal is narrower than its unbroken columns need, lines go on in the next one there."""
    from rich.console import Console

    console = Console()
    least = _least_width(table)
    (Console(width=least) if least > console.width else console).print(table)


def _least_width(table: Table) -> int:
    widths = [max(len(str(cell)) for cell in (column.header, *column.cells)) for column in table.columns]
    needed = (width if column.no_wrap else min(width, _LEAST)
              for column, width in zip(table.columns, widths, strict=True))
    return sum(needed) + _FRAME * len(table.columns) + 1
