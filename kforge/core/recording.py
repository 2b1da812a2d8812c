"""A recorded search space: points of it with what each took or why it failed, without the hardware that told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kforge.core.trial import FailureClass
from kforge.core.workload import Attr, by_value

Value = bool | int | float | str
ABSENT = "-"  # the value of a parameter that a point's template does not have


@dataclass(frozen=True)
class Result:
    """One point, measured once. ``values``: by parameter, in the recording's order.

    ``seconds`` of one call; None exactly when there is a ``failure``. ``runtimes``: single repeats in seconds, none
    where only their summary is known.
    """

    values: tuple[Value, ...]
    seconds: float | None
    failure: FailureClass | None = None
    reason: str = ""
    runtimes: tuple[float, ...] = ()
    build_seconds: float = 0.0
    spread: float | None = None  # interquartile range over median


@dataclass(frozen=True)
class Origin:
    """Which search of kforge's it was; files of other tools have none."""

    problem: str  # Problem.key, without the layout
    bucket: str  # Workload.key, without the layout
    target_identity: str
    target_name: str
    run: str


@dataclass(frozen=True)
class Recording:
    """All points that somebody measured of one kernel at one size on one device. No point is there twice.

    ``excluded``: points that the file lists as outside the space; they are no results.
    """

    kernel: str
    device: str
    size: tuple[int, ...]
    parameters: tuple[str, ...]
    results: tuple[Result, ...]
    origin: Origin | None = None
    excluded: int = 0

    @cached_property
    def choices(self) -> Mapping[str, tuple[Value, ...]]:
        """The values of each parameter that some point has: numbers ascending, then texts."""
        columns = zip(*(r.values for r in self.results), strict=True)
        return {
            name: tuple(sorted(set(column), key=by_value))
            for name, column in zip(self.parameters, columns, strict=True)
        }

    @property
    def best(self) -> Result | None:
        """The fastest point, None where all failed."""
        return min((r for r in self.results if r.seconds is not None), key=lambda r: r.seconds or 0.0, default=None)

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.failure is not None)

    def point(self, result: Result) -> dict[str, Value]:
        """Its values by name; what its template does not have is left out."""
        pairs = zip(self.parameters, result.values, strict=True)
        return {name: value for name, value in pairs if value != ABSENT}

    def fastest(self, count: int) -> list[Result]:
        """Up to so many points that ran, the fastest first."""
        ran = [r for r in self.results if r.seconds is not None]
        return sorted(ran, key=lambda r: r.seconds or 0.0)[:count]


def whole(value: Value) -> Attr:
    """A value as an attribute of a kernel: truth values as 0 and 1. Raises ValueError for a fraction."""
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{value} is no whole number")
        return int(value)
    return int(value) if isinstance(value, bool) else value
