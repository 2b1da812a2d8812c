"""What a part of the bench comes back with."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.core.summary import Summary


@dataclass(frozen=True)
class Finding:
    """One claim and what came of it here.

    ``claimed`` and ``who`` quote others, with the source. ``measured`` is in ``unit``: "x" (a ratio, of pairs that were
    measured one after the other in the same round), "%" or "tokens". ``beside``: the figures that it is made of.
    ``why``: what explains the difference to what is claimed.
    """

    part: str
    claim: str
    who: str
    claimed: str
    measured: Summary
    unit: str
    beside: str
    why: str

    @property
    def told(self) -> str:
        """The measured figure with half its interquartile range, as a table shows it."""
        unit = " %" if self.unit == "%" else self.unit if self.unit == "x" else f" {self.unit}"
        return f"{self.measured.median:.3g}{unit} [±{50 * self.measured.spread:.1f} %]"


def ratios(above: list[float], below: list[float]) -> Summary:
    """Of figures that belong together round by round."""
    return Summary.of([a / b for a, b in zip(above, below, strict=True)])


def times(ratio: Summary) -> str:
    """A ratio that stands beside a finding, with half its interquartile range."""
    return f"{ratio.median:.2f}x [±{50 * ratio.spread:.0f} %]"
