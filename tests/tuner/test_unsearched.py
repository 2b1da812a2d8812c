"""What the time did not let a search look at is not settled: the next tune goes on with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kforge.tuner import coordinator
from kforge.tuner.coordinator import Coordinator


def contest(name: str, points: int, measured: int) -> SimpleNamespace:
    return SimpleNamespace(points=points, measured={f"point {n}": {} for n in range(measured)}, promise=1.0,
                           task=SimpleNamespace(problem=SimpleNamespace(key=name)))


def test_a_default_that_stood_alone_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[str] = []

    class Finals:
        def __init__(self, *_: object) -> None: ...

        def settle(self, contest: SimpleNamespace) -> list[object]:
            settled.append(contest.task.problem.key)
            return []

    monkeypatch.setattr(coordinator, "Finals", Finals)
    notes: list[str] = []
    run = SimpleNamespace(
        folder=SimpleNamespace(of=lambda _: [], used_seconds=1.0), registry=None, target=None, snapshot=None,
        options=SimpleNamespace(budget_seconds=60.0), watcher=SimpleNamespace(note=notes.append, stage=lambda _: None))
    contests = [contest("never searched", 40, 1), contest("searched", 40, 2), contest("nothing to search", 1, 1),
                contest("not even timed", 40, 0)]
    Coordinator._judge(run, contests, None, SimpleNamespace(judged=lambda _: None))  # type: ignore[arg-type]
    assert settled == ["searched", "nothing to search"]
    assert notes == ["out of time before searching 2 of 4 problems: their incumbents stay, and the next tune goes on "
                     "with them (give it a larger --budget)"]
