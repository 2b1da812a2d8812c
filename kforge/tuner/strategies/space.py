"""A finite search space as numbers: every legal point is a row of codes, so that strategies know no template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from kforge.core.workload import Attr, by_value


class DiscreteSpace:
    """Legal points, [points, parameters], as codes into each parameter's values.

    A parameter that has one value everywhere is no coordinate. Raises ValueError for a space without points, and for
    a point that is listed twice.
    """

    def __init__(self, columns: Mapping[str, Sequence[Attr | None]]):
        """``columns``: parameter -> its value at each point; None where a point has no such parameter."""
        self.values: dict[str, tuple[Attr | None, ...]] = {}
        coded: list[np.ndarray] = []
        points = {len(column) for column in columns.values()}
        if len(points) != 1 or points == {0}:
            raise ValueError("a space needs points, and each of them a value of every parameter")
        for name, column in columns.items():
            found = sorted(set(column), key=by_value)
            if len(found) > 1:
                self.values[name] = tuple(found)
                index = {value: code for code, value in enumerate(found)}
                coded.append(np.array([index[value] for value in column], dtype=np.int16))
        self.names = tuple(self.values)
        self.codes = np.array(coded, dtype=np.int16).reshape(len(coded), *points).T.copy()
        self._keys = np.random.default_rng(0).integers(
            0, 2**64, size=(len(self.names), max((len(v) for v in self.values.values()), default=1)), dtype=np.uint64
        )
        keys = self._hash(self.codes)
        self._sorted = np.argsort(keys)
        self._ordered = keys[self._sorted]
        if np.any(self._ordered[1:] == self._ordered[:-1]):
            raise ValueError("a point is listed twice")

    def __len__(self) -> int:
        return len(self.codes)

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Indices of those rows of codes, [rows, parameters], that are legal points; others are left out."""
        if not len(codes):
            return np.zeros(0, dtype=np.int64)
        keys = self._hash(codes)
        at = np.minimum(np.searchsorted(self._ordered, keys), len(self) - 1)
        found = self._sorted[at]
        legal = (self._ordered[at] == keys) & np.all(self.codes[found] == codes, axis=1)
        return found[legal]

    def neighbours(self, point: int) -> np.ndarray:
        """Indices of the legal points that differ from this one in exactly one parameter."""
        counts = [len(self.values[name]) for name in self.names]
        moved = np.repeat(self.codes[point][None], sum(counts), axis=0)
        column = np.repeat(np.arange(len(counts)), counts)
        moved[np.arange(len(moved)), column] = np.concatenate([np.arange(n) for n in counts]) if counts else 0
        return self.find(moved[np.any(moved != self.codes[point], axis=1)])

    @cached_property
    def features(self) -> np.ndarray:
        """Coordinates for models, [points, features], float32, each within [0, 1].

        Numbers are laid out by their logarithm, because sizes act by ratios, and beside it by how often two divides
        them, because hardware likes powers of two (vectors, banks, warps) and a size between two of them behaves
        like neither. Texts get a column each.
        """
        columns: list[np.ndarray] = []
        for k, name in enumerate(self.names):
            table = _layout(self.values[name])
            columns += [row[self.codes[:, k]] for row in table]
        return np.array(columns, dtype=np.float32).T.reshape(len(self), len(columns))

    def _hash(self, codes: np.ndarray) -> np.ndarray:
        """Of each row: a sum of random numbers, one for each value, in whole numbers that wrap around."""
        return self._keys[np.arange(len(self.names)), codes].sum(axis=1, dtype=np.uint64)


def _layout(values: Sequence[Attr | None]) -> list[np.ndarray]:
    """Rows [values] of features of one parameter."""
    if len(values) == 2:
        return [np.array([0.0, 1.0])]
    numbers = [value for value in values if isinstance(value, int | float)]
    if any(isinstance(value, str) for value in values):
        return [np.array([float(value == own) for value in values]) * 0.5**0.5 for own in values]
    sizes = np.array(numbers, dtype=float)
    rows = [_unit(np.log2(sizes) if sizes.min() > 0 else np.arange(len(sizes)))]
    if sizes.min() > 0 and np.all(sizes == np.round(sizes)):
        twos = np.array([(int(value) & -int(value)).bit_length() - 1 for value in numbers], dtype=float)
        if np.ptp(twos) and not np.array_equal(_unit(twos), rows[0]):
            rows.append(_unit(twos))
    lacking = len(values) - len(numbers)  # they come last, and lie in the middle: nowhere nearer to one end
    return [np.append(row, [0.5] * lacking) for row in rows]


def _unit(row: np.ndarray) -> np.ndarray:
    return (row - row.min()) / np.ptp(row)
