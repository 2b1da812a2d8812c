"""Repeated figures in two numbers that a few outliers do not move."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """``spread`` is the interquartile range over the median: 0 for a single figure, and where the median is 0."""

    median: float
    spread: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Of at least one figure."""
        middle = statistics.median(values)
        if len(values) < 2 or not middle:
            return cls(middle, 0.0, len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, (high - low) / middle, len(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ±{100 * self.spread / 2:.1f} %"
