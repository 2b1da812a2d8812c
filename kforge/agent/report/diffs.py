"""What an idea changed: its template and the kernel of its best point, beside those that it was made from."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kforge.agent.assignments import target_of, template_of
from kforge.agent.drafting import PARTS, drafted, source_of
from kforge.agent.idea_log import IdeaLog
from kforge.agent.report import facts
from kforge.agent.report.facts import AgentReport, IdeaReport
from kforge.backends.templates import Template
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.workload import Attr, Problem, Workload

MOST_LINES = 400  # of a difference that are shown
_MOST_COMPARED = 2_000  # lines of a text: comparing takes longer than linear
_AROUND = 3  # unchanged lines shown beside changed ones
_RENDERERS = 4  # side by side: most of a rendering is the start of its child


@dataclass(frozen=True)
class Diff:
    """``lines``: as ``diff -u`` has them, without the names. ``left``: lines beyond ``MOST_LINES``. ``note``: why there
    is nothing to show, or that a text was too long to be compared whole."""

    title: str
    lines: tuple[str, ...] = ()
    left: int = 0
    note: str = ""

    @property
    def added(self) -> int:
        return sum(line.startswith("+") for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.startswith("-") for line in self.lines)


def diffs(report: AgentReport) -> dict[str, tuple[Diff, ...]]:
    """Idea -> its differences; of ideas that came to a template."""
    made = [idea for idea in report.ideas if idea.template]
    comparing = _Comparing(report, IdeaLog.open(report.path))
    with ThreadPoolExecutor(_RENDERERS) as pool:
        return dict(zip((idea.idea.id for idea in made), pool.map(comparing.of, made), strict=True))


def unified(title: str, before: str, after: str) -> Diff:
    old, new = before.splitlines(), after.splitlines()
    note = "" if max(len(old), len(new)) <= _MOST_COMPARED else f"Only the first {_MOST_COMPARED} lines were compared."
    compared = difflib.unified_diff(old[:_MOST_COMPARED], new[:_MOST_COMPARED], n=_AROUND, lineterm="")
    lines = list(compared)[2:]
    if not lines and not note:
        note = "Nothing differs."
    return Diff(title, tuple(lines[:MOST_LINES]), max(len(lines) - MOST_LINES, 0), note)


@dataclass(frozen=True)
class _Best:
    """The point of a template that costs a step the least."""

    problem: Problem
    params: Mapping[str, Attr]
    name: str


class _Comparing:
    def __init__(self, report: AgentReport, log: IdeaLog):
        self.report, self.log = report, log
        self.drafts = {operator: drafted(operator, report.path) for operator in
                       {offered.path.split("/")[1] for offered in log.offered.values()}}

    def of(self, idea: IdeaReport) -> tuple[Diff, ...]:
        found: list[Diff] = []
        try:
            own, parent = self._own(idea), self._parent(idea)
            found += _templates(own, parent)
            found += self._kernel(idea, own, parent)
        except KforgeError as error:  # the rest of the report does not depend on it
            found.append(Diff("kernel" if found else "template", note=f"{error}."))
        return tuple(found)

    def _own(self, idea: IdeaReport) -> Template:
        offered = self.log.offered[idea.idea.number]
        own = self.drafts[offered.path.split("/")[1]].get(offered.path)
        if own is None or own.hash != offered.template_hash:
            raise KforgeError(f"{offered.path} is gone from the run's folder, or was edited")
        return own

    def _parent(self, idea: IdeaReport) -> Template | None:
        """As the run kept it; None for a template that was made from nothing."""
        wanted = self.log.offered[idea.idea.number].parent
        made = next((o for o in self.log.offered.values() if o.template_hash == wanted), None)
        if not wanted:
            return None
        if made is not None and (own := self.drafts[made.path.split("/")[1]].get(made.path)) is not None:
            return own
        if "/" not in idea.made_from:
            raise KforgeError("the template that it was made from is not on record")
        return template_of((idea.made_from, wanted), self.report.path)

    def _kernel(self, idea: IdeaReport, own: Template, parent: Template | None) -> Sequence[Diff]:
        """Empty where nothing of it ran."""
        best = self._best(idea.idea.task, own.path)
        job = self.log.begun.get(idea.idea.number)
        if best is None or job is None:
            return ()
        target = target_of(job)
        after = _rendered(own, target, best)
        if parent is None:
            return (unified(f"kernel of its best point ({best.name})", "", after),)
        other = self._best(idea.idea.task, parent.path) or _default(parent, best.problem, target)
        title = f"kernels of the best points ({other.name} -> {best.name})"
        return (unified(title, _rendered(parent, target, other), after),)

    def _best(self, task: str, path: str) -> _Best | None:
        run = self.report.run
        weights = facts.weights(run, task)
        mine = [p for p in run.tried if (p.task, p.trial.template) == (task, path) and p.seconds]
        cost: dict[tuple, dict[str, float]] = {}
        for p in mine:
            cost.setdefault((p.rows, p.trial.params), {})[p.bucket] = p.seconds or 0.0
        whole = max((len(seconds) for seconds in cost.values()), default=0)
        ran = [key for key, seconds in cost.items() if len(seconds) == whole]
        best = min(ran, key=lambda key: sum(weights.get(b, 0.0) * s for b, s in cost[key].items()), default=None)
        if best is None:
            return None
        point = next(p for p in mine if (p.rows, p.trial.params) == best)
        params = dict(point.trial.params)
        rows = {"rows": point.rows} if point.rows else {}
        return _Best(Workload.parse(point.trial.workload).problem, params, _said({**rows, **params}))


def _default(template: Template, problem: Problem, target: Target) -> _Best:
    params = template.defaults(problem, target)
    return _Best(problem, params, f"defaults, {_said(params)}")


def _rendered(template: Template, target: Target, best: _Best) -> str:
    return template.render(best.problem, target, best.params).source


def _said(values: Mapping[str, Attr]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items()) or "no parameters"


def _templates(own: Template, parent: Template | None) -> Sequence[Diff]:
    """The template itself, then each part of its own beside the part of its parent that it is most like."""
    mine = source_of(own)
    if parent is None:
        return [unified(f"template, new: {name}", "", text) for name, text in mine.texts.items()
                if not name.startswith(f"{PARTS}/")]
    theirs = source_of(parent)
    found = [unified(f"template: {parent.path} -> {own.path}", theirs.text, mine.text)]
    for name, text in mine.texts.items():
        if name != mine.main and theirs.texts.get(name) != text:
            like = _most_like(text, {n: t for n, t in theirs.texts.items() if n != theirs.main})
            found.append(unified(f"part: {like or 'new'} -> {name}", theirs.texts[like] if like else "", text))
    return found


def _most_like(text: str, others: Mapping[str, str]) -> str:
    """Name of the text that shares the most lines, "" where none shares half of them."""
    lines = set(text.splitlines())

    def shared(name: str) -> int:
        return len(lines & set(others[name].splitlines()))

    best = max(others, key=shared, default="")
    return best if best and 2 * shared(best) >= len(lines) else ""
