"""Which lessons a task should hear of, and which two moves are the same. Pure functions of what was recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kforge.core.lesson import Lesson, Standing

MOST_SHOWN = 4
SAME_MOVE = 0.6  # share of words from which on two moves count as one


@dataclass(frozen=True)
class Asked:
    """Who asks. ``bottlenecks``: those that the task is thought to have."""

    operator: str
    backend: str
    family: str
    bottlenecks: frozenset[str] = frozenset()


def kinship(lesson: Lesson, asked: Asked) -> int | None:
    """0: of the same operator, backend and target family; 1: of the same operator; 2: of another one with such a
    bottleneck; None: of no use here."""
    about = lesson.subject
    if about.operator == asked.operator:
        return 0 if (about.backend, about.family) == (asked.backend, asked.family) else 1
    return 2 if about.bottleneck in asked.bottlenecks else None


def relevant(lessons: Iterable[Lesson], asked: Asked, most: int = MOST_SHOWN) -> list[Lesson]:
    """Those that are held, next of kin first, of equal kin those of the same family, then as ``by_support``."""
    held = [lesson for lesson in lessons if lesson.standing is Standing.HELD]
    kin = [(near, lesson) for lesson in by_support(held) if (near := kinship(lesson, asked)) is not None]
    kin.sort(key=lambda found: (found[0], found[1].subject.family != asked.family))
    return [lesson for _, lesson in kin[:most]]


def by_support(lessons: Iterable[Lesson]) -> list[Lesson]:
    """Those held first, the best supported of them first, judged before searched, the newest of equals first."""
    newest = sorted(lessons, key=lambda lesson: (lesson.updated, lesson.id), reverse=True)
    order = list(Standing)
    return sorted(newest, key=lambda lesson: (
        order.index(lesson.standing), lesson.contradictions - lesson.supports, -lesson.judged))


def likeness(one: str, other: str) -> float:
    """Of two moves in words: how many of the words of both are in each, 0 to 1."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else float(one == other)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
