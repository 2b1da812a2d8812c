"""Lessons in the database: events are appended, and what a lesson says is worked out from them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from kforge.core.lesson import Evidence, Lesson, Subject
from kforge.core.words import plain
from kforge.registry.relevance import SAME_MOVE, likeness
from kforge.registry.schema import LessonEventRow, LessonRow

REMOVED = "removed"
_EVIDENCE = TypeAdapter(Evidence)
_COLUMNS = {"run", "idea", "finding", "created"}  # of the evidence, kept beside its document


def add(session: Session, subject: Subject, evidence: Evidence, at: str) -> int:
    """The lesson that the outcome went to: where this idea's went before, else the one of the most similar move, else
    a new one. Saying the same again changes nothing, nor does anything that is said of a lesson that was removed."""
    subject = dataclasses.replace(subject, move=plain(subject.move))
    number = _of_idea(session, evidence) or _of_move(session, subject) or _begin(session, subject, at)
    events = select(LessonEventRow).where(LessonEventRow.lesson == number).order_by(LessonEventRow.id)
    history = list(session.execute(events).scalars())
    if any(event.kind == REMOVED for event in history):
        return number
    document = _EVIDENCE.dump_python(evidence, mode="json", exclude=_COLUMNS)
    before = next((e for e in reversed(history) if (e.run, e.idea) == (evidence.run, evidence.idea)), None)
    if before is None or (before.kind, before.evidence) != (evidence.finding.value, document):
        session.add(LessonEventRow(lesson=number, kind=evidence.finding.value, run=evidence.run, idea=evidence.idea,
                                   evidence=document, created=at))
    return number


def remove(session: Session, number: int, reason: str, at: str) -> bool:
    """False where there is no such lesson, or no more."""
    if number >= 1 << 63 or session.get(LessonRow, number) is None or number in _removed(session):
        return False
    session.add(LessonEventRow(lesson=number, kind=REMOVED, evidence={"reason": reason}, created=at))
    return True


def everything(session: Session) -> list[Lesson]:
    """By number, those removed included."""
    events: dict[int, list[LessonEventRow]] = defaultdict(list)
    for event in session.execute(select(LessonEventRow).order_by(LessonEventRow.id)).scalars():
        events[event.lesson].append(event)
    rows = session.execute(select(LessonRow).order_by(LessonRow.id)).scalars()
    return [_lesson(row, events[row.id]) for row in rows]


def _lesson(row: LessonRow, events: list[LessonEventRow]) -> Lesson:
    last: dict[tuple[str | None, str], Evidence] = {}
    for event in events:
        if event.kind != REMOVED:
            last.pop((event.run, event.idea), None)  # what was heard of last stands last
            last[event.run, event.idea] = _evidence(event)
    removed = any(event.kind == REMOVED for event in events)
    return Lesson(row.id, _subject(row), tuple(last.values()), removed)


def _evidence(event: LessonEventRow) -> Evidence:
    columns: dict[str, Any] = {"run": event.run, "idea": event.idea, "finding": event.kind, "created": event.created}
    return _EVIDENCE.validate_python({**event.evidence, **columns})


def _subject(row: LessonRow) -> Subject:
    return Subject(row.operator, row.backend, row.family, row.bottleneck, plain(row.move))


def _of_idea(session: Session, evidence: Evidence) -> int | None:
    mine = select(LessonEventRow.lesson).where(
        LessonEventRow.run == evidence.run, LessonEventRow.idea == evidence.idea)
    return session.execute(mine.limit(1)).scalar()


def _of_move(session: Session, subject: Subject) -> int | None:
    """The lesson with the most similar move, the oldest of equals."""
    rows = session.execute(select(LessonRow).where(
        LessonRow.operator == subject.operator, LessonRow.backend == subject.backend,
        LessonRow.family == subject.family, LessonRow.bottleneck == subject.bottleneck,
    ).order_by(LessonRow.id)).scalars()
    gone = _removed(session)
    alike = [(likeness(row.move, subject.move), row.id) for row in rows if row.id not in gone]
    best = max(alike, key=lambda found: found[0], default=(0.0, 0))
    return best[1] if best[0] >= SAME_MOVE else None


def _begin(session: Session, subject: Subject, at: str) -> int:
    row = LessonRow(operator=subject.operator, backend=subject.backend, family=subject.family,
                    bottleneck=subject.bottleneck, move=subject.move, created=at)
    session.add(row)
    session.flush()
    return row.id


def _removed(session: Session) -> set[int]:
    return set(session.execute(select(LessonEventRow.lesson).where(LessonEventRow.kind == REMOVED)).scalars())
