"""What a model is told: a system text for each role, the same through a run, and sections of evidence as user text.

The same evidence gives the same bytes: no clock, no paths of this machine, figures rounded to three digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateNotFound

from kforge.agent.answers import Analysis
from kforge.agent.calls import Role
from kforge.agent.contracts import Contract, header, signatures
from kforge.agent.drafting import Source
from kforge.agent.evidence import Sheet
from kforge.agent.failures import told
from kforge.agent.ideas import Branch
from kforge.backends.features import KNOWN
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import Failure
from kforge.tuner.plan import ROWS_CHOICES

MOST_USER = 90_000  # characters of a user text: what goes beyond is left out by the order below
# What is left out first when a text is too long. The contract, the buckets, the template and the request always stay.
_DROPPED = ("failures", "importances", "points", "lessons", "panel", "compiler", "templates", "ideas")


@dataclass(frozen=True)
class Prompt:
    """``system`` depends on the role, the target and the number of threads and the class of numerics alone, so that
    providers may cache it."""

    system: str
    user: str


@dataclass(frozen=True)
class Shown:
    """A template in a prompt. ``title``: what it is there."""

    title: str
    source: Source


def analyst(sheet: Sheet, shown: Shown | None, branch: Branch, limit: int = MOST_USER) -> Prompt:
    request = _render("requests/analyst.md.j2", branch=branch, templates=sheet.templates)
    return Prompt(_system(Role.ANALYST, sheet), _user(sheet, shown, request, limit))


def generator(sheet: Sheet, shown: Shown | None, analysis: Analysis, limit: int = MOST_USER) -> Prompt:
    request = _render("requests/generator.md.j2", analysis=analysis, source=shown)
    return Prompt(_system(Role.GENERATOR, sheet), _user(sheet, shown, request, limit))


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


def _user(sheet: Sheet, shown: Shown | None, request: str, limit: int) -> str:
    there = {"templates": sheet.templates, "points": sheet.points, "importances": sheet.importances,
             "compiler": sheet.reports, "failures": sheet.failures, "ideas": sheet.ideas, "lessons": sheet.lessons}
    sections = {"contract": _contract(sheet.contract), "panel": _panel(sheet.contract),
                "buckets": _render("evidence/buckets.md.j2", sheet=sheet)}
    sections |= {name: _render(f"evidence/{name}.md.j2", sheet=sheet) for name, facts in there.items() if facts}
    return _joined(sections, shown, request, limit)


def _contract(contract: Contract) -> str:
    try:
        notes = _render(f"operators/{contract.operator}.md.j2", contract=contract).strip()
    except TemplateNotFound:
        notes = ""
    packed = bool(contract.panel)
    return _render("evidence/contract.md.j2", contract=contract, notes=notes, packed=packed, rows_choices=ROWS_CHOICES)


def _panel(contract: Contract) -> str:
    return _render("evidence/panel.md.j2", contract=contract) if contract.panel else ""


def _joined(sections: dict[str, str], shown: Shown | None, request: str, limit: int) -> str:
    """Sections in their order, the template, the request; what is too much is left out, and named."""
    parts = [name for name in shown.source.texts if name != shown.source.main] if shown else []
    left: list[str] = []
    hidden: list[str] = []
    dropped = [name for name in _DROPPED if sections.get(name)]

    def text() -> str:
        kept = [body for name, body in sections.items() if body and name not in left]
        note = [f"(Left out for length: {', '.join(left)}.)"] if left else []
        template = [_render("evidence/source.md.j2", title=shown.title, source=shown.source, without=hidden,
                            parts=[p for p in parts if p not in hidden])] if shown else []
        return "\n\n".join(part.strip() for part in [*kept, *note, *template, request]) + "\n"

    while len(whole := text()) > limit and (dropped or len(hidden) < len(parts)):
        if dropped:
            left.append(dropped.pop(0))
        else:
            hidden.append(parts[-1 - len(hidden)])
    return whole


def _system(role: Role, sheet: Sheet) -> str:
    return system(role, sheet.target, sheet.threads, sheet.contract.relaxed)


@cache
def system(role: Role, target: Target, threads: int, relaxed: bool = False) -> str:
    """``relaxed``: for operators without an order specification."""
    features = sorted(set(target.features) & KNOWN)
    text = _render(f"system/{role.value}.md.j2", target=target, threads=threads, features=features,
                   abi=header("abi.h").strip(), math=signatures("math.h"), parts=_shared_parts(), relaxed=relaxed)
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
    env.filters |= {"us": _us, "sig": _sig, "percent": _percent, "bytes": _bytes, "count": _count, "gain": _gain,
                    "clip": _clip, "cell": lambda text: text.replace("|", "/").replace("\n", " ")}
    env.globals["fenced"] = _fenced
    return env


def _render(name: str, **values: object) -> str:
    return _environment().get_template(name).render(values)


def _sig(value: float) -> str:
    """Three significant digits, never in exponents."""
    if not value:
        return "0"
    rounded = float(f"{value:.2e}")
    digits = max(0, 2 - int(f"{rounded:e}".split("e")[1]))
    return f"{rounded:.{digits}f}"


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{_sig(1e6 * seconds)} us"


def _percent(share: float) -> str:
    return f"{_sig(100 * share)} %"


def _gain(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{'+' if ratio >= 0 else '-'}{_sig(abs(100 * ratio))} %"


def _bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{_sig(size / unit)} {name}"
    return f"{size} B"


def _count(number: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{_sig(number / unit)} {name}"
    return _sig(number)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [cut]"


def _fenced(text: str, language: str) -> str:
    """In a fence that is longer than any in the text, which may come from a model."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.strip()}\n{fence}"
