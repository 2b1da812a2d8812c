"""What serves where nothing was tuned: a shipped template at its defaults."""

from __future__ import annotations

from kforge.backends import templates
from kforge.backends.building import build
from kforge.backends.templates import Template
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, NumericsClass
from kforge.core.workload import Problem


def exact_templates(operator: str, backend: str = "cpp") -> list[Template]:
    """Shipped templates that the engine may use, the one that asks most of a target first."""
    exact = [t for t in templates.load(operator) if t.numerics is NumericsClass.EXACT and t.backend == backend]
    return sorted(exact, key=lambda t: (-t.demand, t.path))


def fits_template(problem: Problem, target: Target) -> bool:
    """Whether any of them fits the problem on this target."""
    return any(t.applies(problem, target) is None for t in exact_templates(problem.operator, target.backends[0]))


def default_kernel(problem: Problem, target: Target) -> Candidate:
    """The first of them that fits and builds, at its defaults. Raises KforgeError with what is wrong with each."""
    refused = []
    for template in exact_templates(problem.operator, target.backends[0]):
        if reason := template.applies(problem, target):
            refused.append(f"{template.path}: {reason}")
            continue
        candidate = template.render(problem, target, template.defaults(problem, target))
        if isinstance(built := build(candidate, target), Artifact):
            return candidate
        refused.append(f"{template.path}: {built.kind}: {built.reason}")
    reasons = "; ".join(refused) or "no template is shipped for this operator"
    raise KforgeError(f"No kernel for {problem.key} on {target.name}: {reasons}. The engine can run on torch instead "
                      "(--kernels none).")
