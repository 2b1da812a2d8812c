"""Typed access to a TOML table, with errors that name file and field."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kforge.core.errors import KforgeError


class Table:
    """One table; ``where`` is its place in the file, such as ``caches[0].``."""

    def __init__(self, file: str, where: str, values: dict[str, object]) -> None:
        self._file = file
        self._where = where
        self._values = values
        self._seen: set[str] = set()

    def has(self, field: str) -> bool:
        return field in self._values

    def text(self, field: str, choices: Sequence[str] = ()) -> str:
        value = self._take(field)
        if not isinstance(value, str) or not value:
            raise self._wrong(field, "a text", value)
        if choices and value not in choices:
            raise self._wrong(field, f"one of {', '.join(choices)}", value)
        return value

    def texts(self, field: str, default: Sequence[str] | None = None) -> list[str]:
        """``default``: what a file that lacks the field means; None: it must be there."""
        if default is not None and field not in self._values:
            return list(default)
        value = self._take(field)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(field, "a list of texts", value)
        return value

    def count(self, field: str) -> int:
        value = self._take(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(field, "a positive integer", value)
        return value

    def number(self, field: str) -> float:
        """Finite and not negative."""
        value = self._take(field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise self._wrong(field, "a number, not negative", value)
        return float(value)

    def positive(self, field: str) -> float:
        value = self.number(field)
        if value == 0:
            raise self._wrong(field, "a positive number", value)
        return value

    def tables(self, field: str, required: bool = True) -> list[Table]:
        if not required and field not in self._values:
            return []
        value = self._take(field)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(field, f"a list of tables ([[{field}]])", value)
        return [Table(self._file, f"{self._where}{field}[{i}].", item) for i, item in enumerate(value)]

    def table(self, field: str) -> Table:
        value = self._take(field)
        if not isinstance(value, dict):
            raise self._wrong(field, "a table", value)
        return Table(self._file, f"{self._where}{field}.", value)

    def named_tables(self, field: str) -> list[tuple[str, Table]]:
        value = self._take(field)
        if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
            raise self._wrong(field, f"a table of tables ([{field}.NAME])", value)
        return [(name, Table(self._file, f"{self._where}{field}.{name}.", item)) for name, item in value.items()]

    def no_more(self) -> None:
        """Raises for a field that nobody asked for: most likely a misspelt one."""
        if unknown := sorted(set(self._values) - self._seen):
            raise KforgeError(f"{self._file}: unknown field {self._where}{unknown[0]}")

    def _take(self, field: str) -> object:
        if field not in self._values:
            raise KforgeError(f"{self._file}: field {self._where}{field} is missing")
        self._seen.add(field)
        return self._values[field]

    def _wrong(self, field: str, wanted: str, value: object) -> KforgeError:
        return KforgeError(f"{self._file}: field {self._where}{field} must be {wanted}, not {value!r:.80}")
