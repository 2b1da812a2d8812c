"""One figure held against its goal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """``measured`` may be at most ``allowed``. ``part``: which of the four goals it belongs to."""

    part: str
    name: str
    measured: float
    allowed: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.measured <= self.allowed  # False for NaN
