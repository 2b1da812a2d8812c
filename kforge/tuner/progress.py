"""What a run tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Progress:
    """One trial's news. Seconds are per call; ``limit`` is what the target's measured limits allow."""

    task: str
    point: str
    bucket: str
    seconds: float | None
    failure: str
    best: float
    limit: float
    trials: int
    used_seconds: float
    budget_seconds: float
    checked: str = ""  # what stood in for a device that is not here, where the candidate was right


class Watcher(Protocol):
    def stage(self, text: str) -> None: ...
    def trial(self, news: Progress) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    """Watches nothing."""

    def stage(self, text: str) -> None:
        return

    def trial(self, news: Progress) -> None:
        return

    def note(self, text: str) -> None:
        return
