"""A workload: an operator at given axes and dtypes, with how often a model calls it."""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

Attr = int | str


def attrs(values: Mapping[str, Attr]) -> tuple[tuple[str, Attr], ...]:
    """Attributes in canonical (sorted) order, hashable."""
    return tuple(sorted(values.items()))


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Problem:
    """An operator with its static attributes: what is compiled into a kernel, and what identity matches exactly."""

    operator: builtins.str
    static: tuple[tuple[str, Attr], ...]

    @classmethod
    def of(cls, operator: builtins.str, **static: Attr) -> Problem:
        return cls(operator, attrs(static))

    def __getitem__(self, name: builtins.str) -> Attr:
        return dict(self.static)[name]

    def int(self, name: builtins.str) -> builtins.int:
        return int(self[name])

    def str(self, name: builtins.str) -> builtins.str:
        return str(self[name])

    @cached_property
    def key(self) -> builtins.str:
        """Canonical text, such as ``linear(K=576,N=960,act=a8,...)``: equal for equal problems, in every version."""
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
