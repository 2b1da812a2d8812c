"""The corners of a template's parameter space: what a builder that handles these is likely to handle between."""

from __future__ import annotations

from collections.abc import Sequence

from kforge.backends.header import Param
from kforge.backends.templates import Params, Template
from kforge.core.target import Target
from kforge.core.workload import Problem


def corners(template: Template, problem: Problem, target: Target, *, every: bool = True) -> list[Params]:
    """Legal points: the defaults, the lowest and the highest corner; with ``every``, for the first and the last choice
    of each parameter the legal point nearest to the defaults, too. Each once. Raises TemplateError."""
    space = template.space(problem, target)
    wanted = template.params
    defaults = template.defaults(problem, target)
    found = [defaults, min(space, key=lambda p: _height(p, wanted)), max(space, key=lambda p: _height(p, wanted))]
    if every:
        for param in wanted:
            used = sorted({param.choices.index(point[param.name]) for point in space})
            for index in (used[0], used[-1]):
                here = [point for point in space if point[param.name] == param.choices[index]]
                found.append(min(here, key=lambda p: _distance(p, defaults, wanted)))
    unique: list[Params] = []
    for point in found:
        if point not in unique:
            unique.append(point)
    return unique


def _height(point: Params, params: Sequence[Param]) -> float:
    """How far up the choices lie, from 0 to the number of parameters."""
    return sum(p.choices.index(point[p.name]) / max(1, len(p.choices) - 1) for p in params)


def _distance(point: Params, other: Params, params: Sequence[Param]) -> int:
    return sum(abs(p.choices.index(point[p.name]) - p.choices.index(other[p.name])) for p in params)
