"""A workload: an operator at given axes and dtypes, with how often a model calls it."""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

Attr = int | str

# Attributes that an operator got after kernels of it had been stored, each with the value that those kernels have. With
# this value an attribute stands in no key, so a key stays what it was.
_LATER: Mapping[str, Mapping[str, Attr]] = MappingProxyType({"paged_attention": {"window": 0, "sinks": 0}})


def attribute(text: str) -> Attr:
    """A value as it stands in a key or on a command line: whole numbers become ints."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def by_value(value: object) -> tuple[int, float, str]:
    """Key that sorts values of attributes: numbers ascending, then texts, then None."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return (1, 0.0, str(value)) if value is not None else (2, 0.0, "")


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
    static: tuple[tuple[str, Attr], ...]  # as in the key

    def __post_init__(self) -> None:
        if later := _LATER.get(self.operator):
            object.__setattr__(self, "static", tuple(pair for pair in self.static if pair not in later.items()))

    @classmethod
    def of(cls, operator: builtins.str, **static: Attr) -> Problem:
        return cls(operator, attrs(static))

    def __getitem__(self, name: builtins.str) -> Attr:
        return self.attributes[name]

    @property
    def attributes(self) -> dict[builtins.str, Attr]:
        """All of them, those too that the key leaves out."""
        return {**_LATER.get(self.operator, {}), **dict(self.static)}

    def int(self, name: builtins.str) -> builtins.int:
        value = self[name]
        if not isinstance(value, builtins.int):
            raise ValueError(f"{name}={value} is not a whole number")
        return value

    def str(self, name: builtins.str) -> builtins.str:
        return str(self[name])

    @cached_property
    def key(self) -> builtins.str:
        """Canonical text, such as ``linear(K=576,N=960,act=a8,...)``: equal for equal problems, in every version."""
        return f"{self.operator}({','.join(f'{k}={v}' for k, v in self.static)})"

    @classmethod
    def parse(cls, key: builtins.str) -> Problem:
        """The problem that ``key`` names."""
        operator, _, static = key.removesuffix(")").partition("(")
        return cls(operator, tuple(_pairs(static)))

    @property
    def rows(self) -> builtins.int:
        """Panel height of its packed weight; 0 where it has none, or no layout yet."""
        return self.int("rows") if "rows" in self.attributes else 0

    @property
    def without_layout(self) -> Problem:
        """Before a layout was chosen for its packed weight: what a model asks for, and what is tuned jointly."""
        return Problem(self.operator, tuple((k, v) for k, v in self.static if k != "rows"))

    def with_rows(self, rows: builtins.int) -> Problem:
        """With the panel height of its packed weight."""
        return Problem.of(self.operator, **{**dict(self.static), "rows": rows})


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
        return f"{self.problem.key}@{self.point}"

    @property
    def point(self) -> str:
        """Its dynamic axes as text, such as ``M=8``."""
        return ",".join(f"{k}={v}" for k, v in self.dynamic)

    @classmethod
    def parse(cls, key: str) -> Workload:
        """The workload that ``key`` names; how often it is called is not in it."""
        problem, _, axes = key.rpartition("@")
        return cls(Problem.parse(problem), tuple((name, int(value)) for name, value in _pairs(axes)))

    @property
    def hash(self) -> str:
        return stable_hash(self.key)


def _pairs(text: str) -> Iterator[tuple[str, Attr]]:
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        yield name, attribute(value)


def stable_hash(value: object, length: int = 16) -> str:
    """Hex SHA-256 prefix of a JSON value (keys sorted) or of a text."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]
