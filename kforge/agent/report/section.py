"""The section of a run's report that tells of its models: the tree, what was said, what was measured, what it cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kforge.agent.calls import CallFailure, Reply, Role
from kforge.agent.report import words
from kforge.agent.report.diffs import Diff, diffs, unified
from kforge.agent.report.facts import AgentReport, Call
from kforge.agent.report.gathering import name_of
from kforge.core.words import plain
from kforge.tuner.report import Section
from kforge.tuner.report_names import short_bucket, short_problem, short_template

MOST_PROMPT = 30_000  # characters of a prompt that are shown
MOST_ANSWER = 12_000  # of each text in an answer
_MOST_LINE = 400
_MOST_TITLE = words.MOST_TITLE
_MOST_WHY = 4_000
_LONG = 40  # lines of a difference that is shown closed
_SIDE = 240.0  # of the picture of predictions


@dataclass(frozen=True)
class Said:
    """A text of a prompt or an answer, under its name; ``edit``: what it changes, where it is a replacement."""

    name: str
    text: words.Cut
    edit: Diff | None = None

    @property
    def short(self) -> bool:
        return not self.edit and "\n" not in self.text.text and len(self.text.text) < _MOST_TITLE


@dataclass(frozen=True)
class CallRow:
    file: str
    role: str
    model: str
    outcome: str
    ok: bool
    tokens: str
    usd: str
    seconds: str
    started: str
    system: int  # number of its system text
    prompt: tuple[Said, ...]
    answer: tuple[Said, ...]


@dataclass(frozen=True)
class SystemText:
    number: int
    role: Role
    text: words.Cut


@dataclass(frozen=True)
class Dot:
    """A prediction in the picture; places in units of its side, from its upper left corner."""

    x: float
    y: float
    title: str
    tone: str


@dataclass(frozen=True)
class Scatter:
    """``top``: percent at the upper and right end; ``zero``: place of no gain on the vertical axis."""

    dots: tuple[Dot, ...]
    low: float
    top: float
    zero: float


def section(report: AgentReport) -> Section:
    """Raises KforgeError where the run's record is damaged."""
    here = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    systems = _systems(report.calls)
    strays = [c for c in report.calls if c.idea not in {i.idea.id for i in report.ideas}]
    text = environment.get_template("section.html.j2").render(
        report=report, money=words.money(report), paid=[words.paid(p) for p in report.money.payments],
        predictions=words.predictions(report), scatter=scatter(report), diffs=diffs(report), w=words,
        calls={c.file: _row(c, systems) for c in report.calls}, strays=strays, short=short_template, name_of=name_of,
        short_bucket=short_bucket, short_problem=short_problem, tone=words.tone, plain=plain, line=_line,
        title=words.title, long=_LONG, side=_SIDE,
        most_why=_MOST_WHY,
        systems=[SystemText(n, role, words.cut(text, MOST_PROMPT)) for (role, text), n in systems.items()])
    return Section("Ideas of models", Markup(text), (here / "section.css").read_text(encoding="utf-8"),
                   "ideas.jsonl, calls/, spending.jsonl and the templates")


def scatter(report: AgentReport) -> Scatter | None:
    """Predicted against measured gains in percent; None before two of them are known."""
    known = [(i, 100 * i.predicted, 100 * i.gain) for i in report.ideas
             if i.settled and i.predicted is not None and i.gain is not None]
    if len(known) < 2:
        return None
    top = max(1.0, *(max(predicted, measured) for _, predicted, measured in known)) * 1.1
    low = min(0.0, *(measured for _, _, measured in known)) * 1.1
    up = _SIDE / (top - low)
    dots = (Dot(predicted * _SIDE / top, (top - measured) * up,
                f"{i.idea.id}: predicted {predicted:+.1f} %, measured {measured:+.1f} %", words.tone(i.state))
            for i, predicted, measured in known)
    return Scatter(tuple(dots), low, top, top * up)


def _systems(calls: Sequence[Call]) -> dict[tuple[Role, str], int]:
    """Each system text once: they are long, and the same for all calls of a role."""
    found = dict.fromkeys((c.transcript.request.role, c.transcript.request.system) for c in calls)
    return {key: number for number, key in enumerate(found, 1)}


def _row(call: Call, systems: Mapping[tuple[Role, str], int]) -> CallRow:
    t = call.transcript
    request, answer = t.request, t.answer
    model = answer.model if isinstance(answer, Reply) else t.model
    return CallRow(
        call.file, request.role.value, words.line(f"{t.provider}:{model}", _MOST_TITLE),
        words.line(call.outcome, _MOST_TITLE * 4), isinstance(answer, Reply), words.tokens(call.usage),
        words.usd(t.usd), f"{t.seconds:.1f} s", t.started.strftime("%Y-%m-%d %H:%M:%S %Z"),
        systems[request.role, request.system],
        tuple(Said(m.by, words.cut(m.text, MOST_PROMPT)) for m in request.messages), tuple(_said(call)))


def _said(call: Call) -> list[Said]:
    """What came back, in the order in which it came."""
    t = call.transcript
    found = []
    if t.first is not None:
        found.append(_text(f"first answer, not used ({t.first.kind.value}: {t.first.reason})", t.first.answer))
    if isinstance(t.answer, CallFailure):
        found.append(_text("what was said", t.answer.answer))
    else:
        found.append(_text("said beside it", t.answer.text))
        for name, value in t.answer.arguments.items():
            found += _argument(name, value)
    return [said for said in found if said.text.text or said.edit]


def _argument(name: str, value: Any) -> list[Said]:
    """Edits as differences, texts as texts, the rest as JSON."""
    if isinstance(value, list) and value and all(_is_edit(item) for item in value):
        return [_edit(f"{name} {n} of {len(value)}", item) for n, item in enumerate(value, 1)]
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    return [] if value in ("", [], None) else [_text(name, text)]


def _is_edit(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("find"), str) and isinstance(item.get("replace"), str)


def _edit(name: str, item: Mapping[str, Any]) -> Said:
    file = item.get("file")
    title = f"{name}{f', in {file}' if isinstance(file, str) and file else ''}"
    return Said(words.line(title, _MOST_TITLE), words.Cut("", 0), unified("", item["find"], item["replace"]))


def _text(name: str, text: str) -> Said:
    return Said(words.line(name, _MOST_TITLE * 4), words.cut(text, MOST_ANSWER))


def _line(text: str) -> str:
    """A line of a difference, however long it is."""
    shown = words.cut(text, _MOST_LINE)
    return shown.text + (f" [{shown.left:,} more characters]" if shown.left else "")

