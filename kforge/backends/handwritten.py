"""A kernel of somebody's own, from a file: plain C++ against ``kforge/abi.h``, or a template with a header."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from kforge.backends import templates
from kforge.backends.header import parse
from kforge.backends.templates import Template
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
    if file.suffix not in (".j2", *_SOURCES):
        raise KforgeError(f"{file}: a kernel is C++ ({', '.join(_SOURCES)}) or a template (.j2)")
    return from_text(file.name, text, problem, target, params, numerics)


def from_text(
    name: str, text: str, problem: Problem, target: Target, params: Mapping[str, Attr], numerics: NumericsClass
) -> Candidate:
    """The same of a text that is already read; ``name`` ends as its file's."""
    if name.endswith(".j2"):
        return _from_template(name, text, problem, target, params)
    if set(params) - {"compiler"}:
        raise KforgeError(f"--params: {name} is plain C++ and has none but compiler (gcc or clang)")
    # As in templates, the compiler is part of the source's identity; at the end, so that line numbers stay the file's.
    source = f"{text.rstrip()}\n// compiler {params['compiler']}\n" if params else text
    return Candidate(
        problem,
        "cpp",
        f"file:{name}",
        stable_hash(text),
        attrs(params),
        source,
        numerics,
        templates.layouts(problem),
        HAND,
    )


@contextlib.contextmanager
def template_of_text(name: str, text: str, operator: str) -> Iterator[Template]:
    """A template of ``operator`` from a text, untrusted, with the shipped parts to include; for this block alone.

    Raises KforgeError for one of another operator, TemplateError for one that is broken.
    """
    meant = parse(name, text).operator
    if meant != operator:
        raise KforgeError(
            f"{name} is a template for {meant} (its header says so), and --op says {operator}: "
            f"give --op {meant} with that operator's --axes, or another template"
        )
    with draft_folder() as folder:
        place = folder / "cpp" / operator
        place.mkdir(parents=True)
        file = name if name.count(".") >= 2 else f"{name.removesuffix('.j2')}.cc.j2"
        (place / file).write_text(text, encoding="utf-8")
        shutil.copytree(shipped("templates") / "kernels" / _PARTS, folder / _PARTS)
        yield templates.load(operator, folder)[0]


def _from_template(name: str, text: str, problem: Problem, target: Target, params: Mapping[str, Attr]) -> Candidate:
    with template_of_text(name, text, problem.operator) as template:
        if reason := template.applies(problem, target):
            raise KforgeError(f"{name} does not fit {problem.key}: {reason}")
        chosen = {**template.defaults(problem, target), **params}
        rendered = template.render(problem, target, chosen, proposer=HAND)
    return dataclasses.replace(rendered, template=f"file:{name}")
