"""An answer becomes a template on disk: inside the run's folder, untrusted, rendered once; or a failure to mend."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kforge.agent.answers import Edit, Writing
from kforge.agent.contracts import numerics_of
from kforge.agent.sameness import meaning
from kforge.backends import rendering, templates
from kforge.backends.templates import Template, TemplateError
from kforge.core.drafts import draft_folder, write_whole
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import Failure, FailureClass, NumericsClass
from kforge.core.workload import stable_hash
from kforge.tuner.plan import Task

PARTS = "cpp/common"  # what every template may include
_MOST_FILE = 100_000  # characters of a template or part after all edits
_MOST_SPACE = 20_000  # points before constraints: a search looks at hundreds
_MOST_NAME = 40
_AROUND = 3  # lines shown on each side of an error


@dataclass(frozen=True)
class Source:
    """A template's files as a model sees them: the main one first, then the parts that it includes, by their names."""

    main: str
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        return self.texts[self.main]

    @property
    def hash(self) -> str:
        return stable_hash([[name, text] for name, text in self.texts.items()])


@dataclass(frozen=True)
class Rejected:
    """A draft that is no template yet. ``source``: what was written, for the repairer; where edits did not apply, what
    they were meant for. ``duplicate``: it means the same as another, so there is nothing to mend."""

    failure: Failure
    source: Source
    duplicate: bool = False


def source_of(template: Template) -> Source:
    """Raises TemplateError."""
    return Source(template.path, rendering.sources(template.root, template.path))


def root_of(run: Path) -> Path:
    """The folder of a run's own templates, with the parts that shipped ones include. Raises OSError."""
    root = run / "templates"
    parts = shipped("templates") / "kernels" / PARTS
    for part in sorted(parts.glob("*.j2")):
        copy = root / PARTS / part.name
        if not copy.is_file() or copy.read_bytes() != part.read_bytes():
            write_whole(copy, part.read_bytes())
    return root


def draft(answer: Writing, number: int, base: Source | None, task: Task, target: Target, root: Path,
          known: Sequence[Template]) -> Template | Rejected:
    """The template of ``answer``, below ``root`` under a name of ours, loaded and rendered at its defaults.

    ``base``: what edits are applied to. ``known``: templates that must not be written again. Raises OSError.
    """
    operator = task.problem.operator
    main = f"cpp/{operator}/{_slug(answer.name)}_{number:03d}.cc.j2"
    written = _written(answer, base, main, operator)
    if isinstance(written, Failure):
        return Rejected(written, base or Source(main, {main: answer.template}))
    placed = _placed(written, main, root)
    with draft_folder() as folder:
        shutil.copytree(root / PARTS, folder / PARTS)
        try:
            _write(placed, folder)
            template = next(t for t in templates.load(operator, folder) if t.path == main)
            if same := _same(template, known):
                return Rejected(Failure(FailureClass.TEMPLATE, same), written, duplicate=True)
            failure = _unfit(template, task, target)
        except TemplateError as error:
            failure = Failure(FailureClass.TEMPLATE, _plain(str(error)), _around(placed, error))
        if failure is not None:
            return Rejected(failure, written)
    _write(placed, root)
    return replace(template, root=root.resolve())


def drafted(operator: str, run: Path) -> dict[str, Template]:
    """The templates of the operator that the run's folder holds, by path; none when one of them is damaged."""
    try:
        return {template.path: template for template in templates.load(operator, run / "templates")}
    except TemplateError:
        return {}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_MOST_NAME] or "kernel"


def _written(answer: Writing, base: Source | None, main: str, operator: str) -> Source | Failure:
    """The answer's files under the names that the model knows, the main one under its new name."""
    if answer.template:
        parts = {n: t for n, t in base.texts.items() if n != base.main and not n.startswith(PARTS)} if base else {}
        return Source(main, {main: answer.template.lstrip(), **parts})
    if base is None:
        return Failure(FailureClass.TEMPLATE, "there is nothing to edit: give the whole template")
    texts = dict(base.texts)
    for number, edit in enumerate(answer.edits, 1):
        name = _named(edit, base)
        if name is None:
            return _inapplicable(answer, number, f"there is no file of that name; there are {', '.join(base.texts)}")
        count = texts[name].count(edit.find)
        if count != 1:
            return _inapplicable(answer, number, f"its 'find' occurs {count} times in {name}, and must occur once")
        texts[name] = texts[name].replace(edit.find, edit.replace)
        if len(texts[name]) > _MOST_FILE:
            return _inapplicable(answer, number, f"it makes {name} longer than {_MOST_FILE} characters")
    if texts == dict(base.texts):
        return Failure(FailureClass.TEMPLATE, "the edits change nothing")
    return Source(base.main, texts)


def _inapplicable(answer: Writing, number: int, why: str) -> Failure:
    edits = [edit.model_dump() for edit in answer.edits]
    return Failure(FailureClass.TEMPLATE, f"edit {number} does not apply, so none was: {why}",
                   f"The edits were:\n{json.dumps(edits, indent=1, ensure_ascii=False)}")


def _named(edit: Edit, base: Source) -> str | None:
    """A file by its full name or by the last part of it."""
    if not edit.file:
        return base.main
    found = [name for name in base.texts if edit.file in (name, name.rsplit("/", 1)[-1])]
    return found[0] if len(found) == 1 else None


def _placed(written: Source, main: str, root: Path) -> Source:
    """The files to write: the main one under its new name, each part that is not as on the disk, and each that includes
    such a part, as a copy of its own, because other templates share the parts."""
    parts = {name: text for name, text in written.texts.items() if name != written.main}
    changed = {name for name, text in parts.items()
               if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text}
    while more := {name for name, text in parts.items() if name not in changed and _mentions(text, changed)}:
        changed |= more
    stem = main.removesuffix(".cc.j2")
    renamed = {name: f"{stem}_p{n}.j2" for n, name in enumerate(sorted(changed))} | {written.main: main}
    return Source(main, {renamed.get(name, name): _renamed(text, renamed) for name, text in written.texts.items()})


def _mentions(text: str, names: set[str]) -> bool:
    return any(f'"{name}"' in text or f"'{name}'" in text for name in names)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"').replace(f"'{old}'", f"'{new}'")
    return text


def _write(source: Source, root: Path) -> None:
    """Parts first: whoever finds the template finds what it includes."""
    for name, text in reversed(list(source.texts.items())):
        if not name.startswith(f"{PARTS}/"):
            write_whole(root / name, text.encode())


def _same(template: Template, known: Sequence[Template]) -> str:
    mine = meaning_of(template)
    same = next((other for other in known if meaning_of(other) == mine), None)
    return f"it means the same as {same.path}, which is known: names, comments, spaces and defaults do not make " \
           "another kernel" if same else ""


def _unfit(template: Template, task: Task, target: Target) -> Failure | None:
    """Why the template cannot compete. Raises TemplateError."""
    wanted = numerics_of(task.problem.operator)
    if template.numerics is not wanted:
        why = "what competes here equals the order specification to the bit" if wanted is NumericsClass.EXACT else (
            "this operator has no order specification that a kernel could equal")
        return Failure(FailureClass.TEMPLATE, f"numerics must be \"{wanted.value}\": {why}")
    points = math.prod(len(param.choices) for param in template.params)
    if points > _MOST_SPACE:
        return Failure(FailureClass.TEMPLATE, f"{points} combinations of parameters, of which a search will try a few "
                       f"dozen: at most {_MOST_SPACE}")
    reasons = []
    for rows in task.rows_choices():
        problem = task.at(rows)
        if reason := template.applies(problem, target):
            reasons.append(reason)
            continue
        template.render(problem, target, template.defaults(problem, target))
        return None
    return Failure(FailureClass.TEMPLATE, f"it does not serve {task.problem.key}: {'; '.join(dict.fromkeys(reasons))}")


def meaning_of(template: Template) -> str:
    """Equal for templates that mean the same, whatever they and their parts are called. Raises TemplateError."""
    source = source_of(template)
    parts = {name: stable_hash(text) for name, text in source.texts.items() if name != source.main}
    return meaning(template.path, _renamed(source.text, parts), template.header)


def _around(source: Source, error: TemplateError) -> str:
    """The lines about an error, numbered, the one at fault marked."""
    lines = source.texts.get(error.path, "").splitlines()
    shown = range(max(1, error.line - _AROUND), min(len(lines), error.line + _AROUND) + 1) if error.line else ()
    return "\n".join(f"{'>' if n == error.line else ' '}{n:5} {lines[n - 1]}" for n in shown)


def _plain(reason: str) -> str:
    """Of a renderer that died the last words, without the places of this machine."""
    head, said, trace = reason.partition("rendering failed: ")
    return head + said + trace.strip().splitlines()[-1] if said and trace.strip() else reason
