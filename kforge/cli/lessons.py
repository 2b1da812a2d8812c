"""``kforge lessons``: what the moves that models proposed came to, kept over runs."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kforge.core.errors import KforgeError, sentence_of
from kforge.core.lesson import Lesson, Standing

if TYPE_CHECKING:
    from kforge.registry.database import Registry

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="What models' ideas came to: lessons with their evidence.",
)

_MOST_MOVE = 90  # characters of a move in a row
Number = Annotated[int, typer.Argument(help="A lesson's number.", min=1)]
Operator = Annotated[str, typer.Option(help="Only this operator.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Format(StrEnum):
    JSONL = "jsonl"
    MARKDOWN = "markdown"


@app.command("list")
def list_lessons(
    operator: Operator = "",
    standing: Annotated[str, typer.Option(help="Only this standing: held, demoted, open or removed.")] = "",
    as_json: Json = False,
) -> None:
    """Every lesson but those removed, with what speaks for it and against it."""
    found = _chosen(operator, standing)
    if as_json:
        print(json.dumps([_document(lesson) for lesson in found], indent=1))
        return
    if not found:
        print("no lessons; kforge tune --agent learns them from what a model's ideas came to")
        return
    from rich.console import Console

    from kforge.cli.tables import folding
    from kforge.core.words import brief, counted

    table = folding("no", "standing", "says", "for", "against", "about", "move", right=("no", "for", "against"),
                    title=counted(len(found), "lesson"))
    for lesson in found:
        about = lesson.subject
        table.add_row(str(lesson.id), lesson.standing, lesson.claim, str(lesson.supports), str(lesson.contradictions),
                      f"{about.operator} on {about.family}", f"{about.bottleneck}: {brief(about.move, _MOST_MOVE)}")
    Console().print(table)


@app.command()
def show(number: Number, as_json: Json = False) -> None:
    """One lesson as prompts show it, with its standing and when it was heard of last."""
    from kforge.registry.lesson_text import told

    lesson = _one(number)
    if as_json:
        print(json.dumps(_document(lesson), indent=1))
        return
    print(f"lesson {lesson.id}: {lesson.standing}, last heard of {lesson.updated}")
    print(told(lesson))


@app.command()
def rm(
    number: Number, reason: Annotated[str, typer.Option(help="Why; kept in its history.")] = "removed by hand"
) -> None:
    """Show a lesson to no model any more. Its history stays."""
    with _registry() as registry:
        registry.remove_lesson(number, reason)
    print(f"lesson {number} is removed")


@app.command()
def export(
    operator: Operator = "",
    form: Annotated[
        Format, typer.Option("--format", help="jsonl: one JSON object a line; markdown: for a reader.")
    ] = Format.JSONL,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; standard output if none.")] = None,
) -> None:
    """Every lesson but those removed, with all its evidence."""
    from kforge.core.words import counted

    found = _chosen(operator, "")
    text = _markdown(found) if form is Format.MARKDOWN else "".join(json.dumps(_document(x)) + "\n" for x in found)
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KforgeError(sentence_of(error)) from error
    print(f"{counted(len(found), 'lesson')}: {out}")


def _registry() -> Registry:
    from kforge.registry.database import Registry

    return Registry.open()


def _lessons() -> list[Lesson]:
    with _registry() as registry:
        return registry.lessons()


def _chosen(operator: str, standing: str) -> list[Lesson]:
    """By number; those removed only where they are asked for."""
    known = [s.value for s in Standing]
    if standing not in ("", *known):
        raise KforgeError(f"--standing {standing!r} is none of {', '.join(known)}")
    wanted = {standing} if standing else set(known) - {Standing.REMOVED.value}
    return [x for x in _lessons() if operator in ("", x.subject.operator) and x.standing.value in wanted]


def _one(number: int) -> Lesson:
    found = next((lesson for lesson in _lessons() if lesson.id == number), None)
    if found is None:
        raise KforgeError(f"there is no lesson {number}; see: kforge lessons list")
    return found


def _markdown(lessons: list[Lesson]) -> str:
    """A section for each; what a model wrote stands in a block that nothing in it ends."""
    from kforge.registry.lesson_text import told

    sections = []
    for lesson in lessons:
        body = "\n".join(f"    {line}" for line in told(lesson).splitlines())
        sections.append(f"## Lesson {lesson.id}: {lesson.subject.operator}, {lesson.standing}\n\n{body}\n")
    return "\n".join(["# Lessons\n", *sections])


def _document(lesson: Lesson) -> dict[str, Any]:
    import dataclasses

    from kforge.registry.lesson_text import told

    return {
        "number": lesson.id,
        "standing": lesson.standing.value,
        "says": lesson.claim.value,
        "supports": lesson.supports,
        "contradictions": lesson.contradictions,
        **dataclasses.asdict(lesson.subject),
        "evidence": [dataclasses.asdict(evidence) for evidence in lesson.evidence],
        "updated": lesson.updated,
        "text": told(lesson),
    }
