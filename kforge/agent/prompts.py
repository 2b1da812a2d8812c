"""What a model is told: a system text for each role, the same through a run, and sections of evidence as user text.

The same evidence gives the same bytes: no clock, no paths of this machine, figures rounded to three digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateNotFound

from kforge.agent import figures
from kforge.agent.answers import Analysis
from kforge.agent.calls import Role
from kforge.agent.contracts import Contract, header, signatures
from kforge.agent.drafting import Source
from kforge.agent.evidence import Sheet, TimeFacts
from kforge.agent.failures import told
from kforge.agent.ideas import Branch
from kforge.agent.transfer import differences
from kforge.backends.features import KNOWN
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import Failure
from kforge.tuner.plan import ROWS_CHOICES

MOST_USER = 90_000  # characters of a user text: what goes beyond is left out by the order below
MOST_ANALYST = 29_000  # of an analyst's: with his system text some 12,000 tokens. He reads, and writes a page
# What is left out first when a text is too long. The contract, the buckets, the template and the request always stay.
# An analyst goes without the parts of a template first: he need not edit them.
_DROPPED = ("failures", "importances", "points", "transfer", "lessons", "panel", "compiler", "templates", "ideas")
_MOST_SEEN = 12_000  # characters of a long template that an analyst sees
_OFFERED = re.compile(r"^(?:KF_INLINE|static inline|inline)\b[^(\n]*?(\w+)\(|\{%-?\s*macro\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Prompt:
    """``system`` depends on the role, the target, the number of threads and the class of numerics alone, so that
    providers may cache it."""

    system: str
    user: str


@dataclass(frozen=True)
class Shown:
    """A template in a prompt. ``title``: what it is there."""

    title: str
    source: Source


def analyst(sheet: Sheet, shown: Shown | None, branch: Branch, limit: int = MOST_ANALYST) -> Prompt:
    request = _render("requests/analyst.md.j2", branch=branch, templates=sheet.templates)
    return Prompt(_system(Role.ANALYST, sheet), _joined(_sections(sheet), shown, request, limit, parts_first=True))


def generator(sheet: Sheet, shown: Shown | None, analysis: Analysis, branch: Branch, limit: int = MOST_USER) -> Prompt:
    request = _render("requests/generator.md.j2", analysis=analysis, source=shown, branch=branch)
    sections = _sections(sheet) | {"panel": _panel(sheet.contract)}
    return Prompt(_system(Role.GENERATOR, sheet), _joined(sections, shown, request, limit))


def repairer(contract: Contract, target: Target, threads: int, shown: Shown, failure: Failure, purpose: str,
             limit: int = MOST_USER) -> Prompt:
    """Depends on nothing that is measured, so a repair is the same whenever it is asked for."""
    request = _render("requests/repairer.md.j2", kind=failure.kind.value, failure=told(failure), purpose=purpose)
    sections = {"contract": _contract(contract), "panel": _panel(contract)}
    text = system(Role.REPAIRER, target, threads, contract.relaxed)
    return Prompt(text, _joined(sections, shown, request, limit))


def again(reason: str) -> str:
    """What is said after an answer that could not be used."""
    return f"That answer could not be used: {reason}\nCall the tool again, with a whole and valid answer."


def _sections(sheet: Sheet) -> dict[str, str]:
    """The evidence, section by section. The panel's place is there; what it holds only whoever writes needs."""
    there = {"templates": sheet.templates, "points": sheet.points, "importances": sheet.importances,
             "compiler": sheet.reports, "failures": sheet.failures, "ideas": sheet.ideas, "lessons": sheet.lessons,
             "transfer": sheet.transfer}
    other = differences(sheet.target, sheet.transfer.target) if sheet.transfer else ()
    sections = {"contract": _contract(sheet.contract), "panel": "",
                "buckets": _render("evidence/buckets.md.j2", sheet=sheet)}
    return sections | {name: _render(f"evidence/{name}.md.j2", sheet=sheet, differences=other)
                       for name, facts in there.items() if facts}


def _contract(contract: Contract) -> str:
    try:
        notes = _render(f"operators/{contract.operator}.md.j2", contract=contract).strip()
    except TemplateNotFound:
        notes = ""
    packed = bool(contract.panel)
    return _render("evidence/contract.md.j2", contract=contract, notes=notes, packed=packed, rows_choices=ROWS_CHOICES)


def _panel(contract: Contract) -> str:
    return _render("evidence/panel.md.j2", contract=contract) if contract.panel else ""


def _joined(sections: dict[str, str], shown: Shown | None, request: str, limit: int, parts_first: bool = False) -> str:
    """Sections in their order, the template, the request; what is too much is left out, and named."""
    parts = [name for name in shown.source.texts if name != shown.source.main] if shown else []
    leave = [name for name in _DROPPED if sections.get(name)]
    leave = [*_least_own(parts, shown), *leave] if parts_first else [*leave, *reversed(parts)]
    main = shown.source.text if shown else ""
    left: list[str] = []

    def text(seen: str) -> str:
        kept = [body for name, body in sections.items() if body and name not in left]
        dropped = [name for name in left if name not in parts]
        note = [f"(Left out for length: {', '.join(dropped)}.)"] if dropped else []
        template = [_render("evidence/source.md.j2", title=shown.title, source=shown.source, seen=seen,
                            more=main.count("\n") - seen.count("\n"), offers=_offers,
                            without=[name for name in left if name in parts],
                            parts=[p for p in parts if p not in left])] if shown else []
        return "\n\n".join(part.strip() for part in [*kept, *note, *template, request]) + "\n"

    shorter = parts_first and len(text(main)) > limit and len(main) > _MOST_SEEN
    seen = main[:_MOST_SEEN].rpartition("\n")[0] + "\n" if shorter else main
    while len(whole := text(seen)) > limit and leave:
        left.append(leave.pop(0))
    return whole


def _least_own(parts: Sequence[str], shown: Shown | None) -> list[str]:
    """Parts that are not the operator's own first, since they say least of the template; of equals the longest."""
    if shown is None:
        return []
    words = shown.source.main.split("/")[1].split("_")
    return sorted(parts, key=lambda name: (any(word in name for word in words), -len(shown.source.texts[name])))


def _offers(text: str) -> str:
    """Names of the functions and macros of a part."""
    found = _OFFERED.findall(text)
    return ", ".join(dict.fromkeys(function or macro for function, macro in found))


def _system(role: Role, sheet: Sheet) -> str:
    return system(role, sheet.target, sheet.threads, sheet.contract.relaxed)


@cache
def system(role: Role, target: Target, threads: int, relaxed: bool = False) -> str:
    """``relaxed``: for operators without an order specification."""
    features = sorted(set(target.features) & KNOWN)
    text = _render(f"system/{role.value}.md.j2", target=target, threads=threads, features=features,
                   abi=header("abi.h").strip(), math=signatures("math.h"), parts=_shared_parts(), relaxed=relaxed,
                   brief=role is Role.ANALYST)
    return text.strip() + "\n"


@dataclass(frozen=True)
class _Part:
    name: str
    says: str


def _shared_parts() -> Sequence[_Part]:
    """What templates may include, with the first comment of each."""
    root = shipped("templates") / "kernels"
    found = []
    for file in sorted(root.glob("cpp/common/*.j2")):
        comment = re.match(r"\s*\{#-?(.*?)-?#\}", file.read_text(encoding="utf-8"), re.DOTALL)
        found.append(_Part(file.relative_to(root).as_posix(), " ".join(comment[1].split()) if comment else ""))
    return found


@cache
def _environment() -> Environment:
    env = Environment(loader=FileSystemLoader(shipped("templates") / "prompts"), undefined=StrictUndefined,
                      autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    env.filters |= {"us": figures.us, "sig": figures.sig, "percent": figures.percent, "bytes": figures.size,
                    "count": figures.count, "gain": figures.gain, "clip": figures.clip, "around": figures.around,
                    "time": _time, "cell": lambda text: text.replace("|", "/").replace("\n", " ")}
    env.globals["fenced"] = _fenced
    return env


def _render(name: str, **values: object) -> str:
    return _environment().get_template(name).render(values)




def _time(time: TimeFacts | None) -> str:
    if time is None:
        return "-"
    spread = f" {figures.around(time.spread)}" if time.spread else ""
    return f"{figures.us(time.seconds)}{spread}{' ~' if time.alike else ''}"


def _fenced(text: str, language: str) -> str:
    """In a fence that is longer than any in the text, which may come from a model."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.strip()}\n{fence}"
