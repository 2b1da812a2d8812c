"""A workload: an operator at given axes and dtypes, with how often a model calls it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Attr = int | str


def attrs(values: Mapping[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    """Attributes in canonical (sorted) order, hashable."""
    return tuple(sorted(values.items()))


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Problem:
    """An operator with its static attributes: the part that is compiled into a kernel and that identity matches exactly."""

    operator: str
    static: tuple[tuple[str, Attr], ...]

    @classmethod
    def of(cls, operator: str, **static: Attr) -> Problem:
        return cls(operator, attrs(static))

    def __getitem__(self, name: str) -> Attr:
        return dict(self.static)[name]

    def int(self, name: str) -> int:
        return int(self[name])

    def str(self, name: str) -> str:
        return str(self[name])

    @property
    def key(self) -> str:
        """Canonical text, for instance ``linear(K=576,N=960,act=a8,...)``: the same for equal problems, stable across versions."""
        return f"{self.operator}({','.join(f'{k}={v}' for k, v in self.static)})"


@dataclass(frozen=True)
class Workload:
    """A problem at one point of its dynamic axes.

    ``count`` is how often one step of ``phase`` calls it (all layers added up); tuning weighs by it.
    """

    problem: Problem
    dynamic: tuple[tuple[str, int], ...]
    count: float = field(default=1.0, compare=False)
    phase: Phase = field(default=Phase.DECODE, compare=False)

    @classmethod
    def of(cls, problem: Problem, count: float = 1.0, phase: Phase = Phase.DECODE, **dynamic: int) -> Workload:
        return cls(problem, tuple(sorted(dynamic.items())), count, phase)

    @property
    def axes(self) -> dict[str, int]:
        return dict(self.dynamic)

    @property
    def key(self) -> str:
        return f"{self.problem.key}@{','.join(f'{k}={v}' for k, v in self.dynamic)}"

    @property
    def hash(self) -> str:
        return stable_hash(self.key)


def stable_hash(value: object, length: int = 16) -> str:
    """Hex SHA-256 prefix of a JSON value (keys sorted) or of a text."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
