"""From a client's words to a candidate at a workload, within bounds that keep a machine usable."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

from kforge.backends import templates
from kforge.backends.handwritten import from_text, template_of_text
from kforge.backends.templates import Template
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Attr, Workload
from kforge.mcp.failures import bad_input
from kforge.mcp.jobs import Subject
from kforge.operators import get
from kforge.operators.axes import USUAL
from kforge.operators.imported import Imported
from kforge.registry.snapshot import Snapshot
from kforge.registry.store import Store
from kforge.tuner.contenders import incumbent, workload_of

PROPOSER = "mcp"  # of kernels that clients write: the engine runs them in a process of their own
_MOST_BYTES = 1 << 30  # of a workload's tensors together, and a sixteenth of the machine's memory
_MOST_OPERATIONS = 1 << 40


def workload_at(operator: str, axes: Mapping[str, Attr], snapshot: Snapshot, target: Target) -> Workload:
    """Raises KforgeError for axes that make no workload."""
    return workload_of(operator, {**USUAL.get(operator, {}), **axes}, snapshot, target)


def measurable(workload: Workload, target: Target) -> Workload:
    """``workload`` itself. Raises CallFailed for one that this machine should not be made to hold or compute."""
    operator = get(workload.problem.operator)
    size = sum(spec.bytes for spec in operator.tensors(workload))
    most = min(_MOST_BYTES, target.memory_bytes // 16)
    if size > most:
        raise bad_input(f"the tensors of {workload.key} take {size} bytes, and at most {most} are measured here")
    work = sum(count for _, count in operator.cost(workload).operations)
    if work > _MOST_OPERATIONS:
        raise bad_input(f"{workload.key} takes {work} operations a call, and at most {_MOST_OPERATIONS} are done here")
    return workload


def candidate_of(subject: Subject, workload: Workload, snapshot: Snapshot, store: Store, target: Target) -> Candidate:
    """Raises KforgeError, for a template its TemplateError."""
    if subject.text is not None:
        alone = isinstance(get(workload.problem.operator), Imported)  # without an order to be exact to
        numerics = NumericsClass.RELAXED if subject.relaxed or alone else NumericsClass.EXACT
        made = from_text(subject.kernel, subject.text, workload.problem, target, subject.params, numerics)
        return dataclasses.replace(made, proposer=PROPOSER)
    if "/" in subject.kernel:
        with template_of(subject, workload) as template:
            if reason := template.applies(workload.problem, target):
                raise bad_input(f"{template.path} does not fit {workload.problem.key}: {reason}")
            chosen = {**template.defaults(workload.problem, target), **subject.params}
            return template.render(workload.problem, target, chosen)
    if subject.params:
        raise bad_input(f"{subject.kernel} has its parameters already: give the path of its template to change them")
    return incumbent(subject.kernel, workload, snapshot, store, target).candidate


@contextlib.contextmanager
def template_of(subject: Subject, workload: Workload) -> Iterator[Template]:
    """The template that a subject names, for this block. Raises KforgeError."""
    operator = workload.problem.operator
    if subject.text is not None and subject.kernel.endswith(".j2"):
        with template_of_text(subject.kernel, subject.text, operator) as template:
            yield template
        return
    found = [t for t in templates.load(operator) if t.path == subject.kernel]
    if not found:
        known = ", ".join(t.path for t in templates.load(operator))
        raise KforgeError(f"{subject.kernel} is no template of {operator}; shipped are {known}")
    yield found[0]
