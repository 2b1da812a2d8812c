"""A kernel of somebody's own, from a file: plain C++ against ``kforge/abi.h``, or a template with a header."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

from kforge.backends import templates
from kforge.backends.header import parse
from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Attr, Problem, attrs, stable_hash

HAND = "hand"  # the proposer of kernels that people write
_SOURCES = (".cc", ".cpp", ".cxx")
_PARTS = "cpp/common"  # what templates may include


def from_file(
    file: Path, problem: Problem, target: Target, params: Mapping[str, Attr], numerics: NumericsClass
) -> Candidate:
    """A hand-written C++ source, or a template with a header (``.j2``; its own numerics count), as a candidate.

    Raises KforgeError, for a template that is broken its TemplateError.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise KforgeError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KforgeError(f"{file} is not UTF-8 text") from None
    if file.suffix == ".j2":
        return _from_template(file, text, problem, target, params)
    if file.suffix not in _SOURCES:
        raise KforgeError(f"{file}: a kernel is C++ ({', '.join(_SOURCES)}) or a template (.j2)")
    if set(params) - {"compiler"}:
        raise KforgeError(f"--params: {file.name} is plain C++ and has none but compiler (gcc or clang)")
    # As in templates, the compiler is part of the source's identity; at the end, so that line numbers stay the file's.
    source = f"{text.rstrip()}\n// compiler {params['compiler']}\n" if params else text
    return Candidate(
        problem,
        "cpp",
        f"file:{file.name}",
        stable_hash(text),
        attrs(params),
        source,
        numerics,
        templates.layouts(problem),
        HAND,
    )


def _from_template(file: Path, text: str, problem: Problem, target: Target, params: Mapping[str, Attr]) -> Candidate:
    meant = parse(file.name, text).operator
    if meant != problem.operator:
        raise KforgeError(
            f"{file.name} is a template for {meant} (its header says so), and --op says {problem.operator}: "
            f"give --op {meant} with that operator's --axes, or another template"
        )
    with draft_folder() as folder:
        place = folder / "cpp" / problem.operator
        place.mkdir(parents=True)
        name = file.name if file.name.count(".") >= 2 else f"{file.stem}.cc.j2"
        (place / name).write_text(text, encoding="utf-8")
        shutil.copytree(shipped("templates") / "kernels" / _PARTS, folder / _PARTS)
        template = templates.load(problem.operator, folder)[0]
        if reason := template.applies(problem, target):
            raise KforgeError(f"{file.name} does not fit {problem.key}: {reason}")
        chosen = {**template.defaults(problem, target), **params}
        rendered = template.render(problem, target, chosen, proposer=HAND)
    return dataclasses.replace(rendered, template=f"file:{file.name}")
