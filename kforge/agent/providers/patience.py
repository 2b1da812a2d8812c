"""How long a call is tried for, and how often."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_MOST_DOUBLINGS = 30  # beyond any sensible delay


@dataclass(frozen=True)
class Patience:
    """Times in seconds. ``silence``: how long a server may say nothing, ``seconds``: of a call with all its retries.

    Reasoning models are silent while they think, where their servers send no signs of life.
    """

    attempts: int = 8
    first: float = 1.0  # delay before the second attempt; it doubles from one to the next
    longest: float = 60.0
    connect: float = 15.0
    silence: float = 600.0
    seconds: float = 1200.0

    def delay(self, failed: int, asked: float | None) -> float:
        """Before the next attempt, after ``failed`` ones: random, so that callers do not come back together.

        Never sooner than the server ``asked`` for.
        """
        most = min(self.longest, self.first * 2.0 ** min(failed - 1, _MOST_DOUBLINGS))
        return max(random.uniform(most / 2, most), asked or 0.0)


def asked_delay(headers: dict[str, str]) -> float | None:
    """Seconds that a response asks to wait: retry-after-ms, or retry-after, seconds or a date. Lower-case names."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        if (after := headers.get("retry-after")) is None:
            return None
        if after.replace(".", "", 1).isdecimal():
            return float(after)
        when = parsedate_to_datetime(after)
        return max(0.0, (when - datetime.now(UTC if when.tzinfo else None)).total_seconds())
    except (ValueError, OverflowError):
        return None
