"""Templates that were generated for an imported operator: in a folder, as untrusted as what anybody writes there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from kforge.backends import templates
from kforge.backends.generic import TemplateText, templates_for
from kforge.backends.templates import Template
from kforge.core.drafts import draft_folder, write_whole
from kforge.core.errors import KforgeError, sentence_of
from kforge.core.target import Target
from kforge.core.trial import Candidate
from kforge.operators.imported import Imported

FOLDER = "generated"  # of a run's: beside what was proposed in it


def placed(texts: Sequence[TemplateText], operator: str, run: Path) -> list[Template]:
    """Written below the run's folder and loaded, in their order. What an earlier process left there is replaced.

    Raises KforgeError, for a template that is broken its TemplateError.
    """
    root = run / FOLDER
    paths = [f"cpp/{operator}/{text.name}.cc.j2" for text in texts]
    shutil.rmtree(root, ignore_errors=True)
    try:
        for path, text in zip(paths, texts, strict=True):
            write_whole(root / path, text.text.encode())
    except OSError as error:
        raise KforgeError(sentence_of(error)) from error
    found = {template.path: template for template in templates.load(operator, root)}
    return [found[path] for path in paths]


def untuned(operator: Imported, target: Target) -> Candidate:
    """What serves an imported operator while nothing is tuned: the first generated template at its defaults.

    Raises KforgeError.
    """
    with draft_folder() as folder:
        template = placed(templates_for(operator.graph, operator.name), operator.name, folder)[0]
        if reason := template.applies(operator.problem, target):
            raise KforgeError(f"{template.path} does not fit {operator.problem.key}: {reason}")
        return template.render(operator.problem, target, template.defaults(operator.problem, target))
