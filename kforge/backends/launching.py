"""A header's launches bound to a problem: what each argument is, and which constants its sizes need."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kforge.backends.header import LaunchHeader, TemplateError
from kforge.core.launch import Argument, ArgumentKind, Launch, names
from kforge.core.workload import Attr, Problem, Workload
from kforge.operators import get

_STRIDE = re.compile(r"(?P<tensor>\w+)\.stride(?P<dimension>\d+)\Z")


def bound(launch: LaunchHeader, problem: Problem, params: Mapping[str, Attr], path: str) -> Launch:
    """The launch of this problem with these parameters. Raises TemplateError for what the operator does not have."""
    operator = get(problem.operator)
    workload = Workload(problem, tuple((axis, 1) for axis in sorted(operator.dynamic_axes)))
    dimensions = {spec.name: len(spec.shape) for spec in operator.tensors(workload)}
    arguments = []
    for text in launch.arguments:
        argument = _argument(text.removesuffix("?"), dimensions, operator.dynamic_axes, operator.scalar_names)
        if argument is not None:
            arguments.append(argument)
        elif not text.endswith("?"):
            raise TemplateError(path, 0, f"argument '{text}' of launch '{launch.entry}' is no tensor (TENSOR or "
                                f"TENSOR.strideN), axis or scalar of {problem.operator} nor 'scratch'")
    values = {name: value for name, value in {**dict(problem.attributes), **params}.items() if isinstance(value, int)}
    wanted = frozenset().union(*(names(text) for text in (*launch.grid, *launch.block, launch.scratch)))
    if unknown := sorted(wanted - set(values) - set(operator.dynamic_axes)):
        raise TemplateError(path, 0, f"launch '{launch.entry}' names {unknown[0]}, which is neither an attribute, a "
                            "parameter nor an axis")
    constants = tuple(sorted((name, values[name]) for name in wanted & set(values)))
    return Launch(launch.entry, launch.grid, tuple(arguments), launch.block, launch.scratch, constants)


def _argument(text: str, dimensions: Mapping[str, int], axes: tuple[str, ...],
              scalars: tuple[str, ...]) -> Argument | None:
    if text == "scratch":
        return Argument(ArgumentKind.SCRATCH, text)
    if found := _STRIDE.match(text):
        tensor, dimension = found["tensor"], int(found["dimension"])
        known = dimension < dimensions.get(tensor, 0)
        return Argument(ArgumentKind.STRIDE, tensor, dimension) if known else None
    for kind, known_names in ((ArgumentKind.TENSOR, dimensions), (ArgumentKind.AXIS, axes),
                              (ArgumentKind.SCALAR, scalars)):
        if text in known_names:
            return Argument(kind, text)
    return None
