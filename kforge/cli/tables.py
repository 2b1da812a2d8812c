"""Tables of which nothing is cut off, in a narrow terminal and in a log: what does not fit goes on in the next line."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def folding(*columns: str, right: Collection[str] = (), title: str | None = None) -> Table:
    """A table that fits any width, with cells shown letter by letter: no markup, no control characters. ``right``:
    columns of figures."""
    from rich.table import Table
    from rich.text import Text

    from kforge.core.words import plain

    class Plain(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(Text(plain(cell)) if isinstance(cell, str) else cell for cell in cells), **options)

    table = Plain(title=title)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in right else "left")
    return table
