"""Named axes, as a person gives them, as a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kforge.core.errors import KforgeError
from kforge.core.workload import Attr, Problem, Workload
from kforge.operators import get, imported_names, names

# What an operator is when a question does not say: kforge's own choice for quantised weights.
USUAL: dict[str, dict[str, Attr]] = {
    "linear": {"act": "a8", "epilogue": "none", "bias": 0},
    "moe_linear": {"act": "a8", "epilogue": "none", "bias": 0},
    "rms_norm": {"residual": 0},
}
_FLAGS = ("bias", "residual", "sinks")
_LARGEST = 1 << 40  # of an axis: beyond any memory


def workload_of(operator: str, axes: Mapping[str, Attr], rows: Callable[[Problem], int]) -> Workload:
    """The workload of static and dynamic axes in one mapping. ``rows`` says the panel height of a packed weight whose
    axes (all but ``rows``) are given, where they do not.

    Raises KforgeError that names the operator or axis that is unknown, missing or impossible.
    """
    if operator not in (known := (*names(), *imported_names())):
        raise KforgeError(f"there is no operator {operator!r}; there are {', '.join(known)}")
    contract = get(operator)
    if why := contract.unfit:
        raise KforgeError(f"{operator} is flagged: {why}; a wrong kernel would pass its checks, so none is tried")
    axes = {**contract.usual, **axes}
    known = (*contract.static_axes, *contract.dynamic_axes)
    if unknown := [n for n in axes if n not in known]:
        raise KforgeError(f"{operator} has no axis {', '.join(unknown)}; it has {', '.join(known)}")
    if missing := [n for n in known if n not in axes and n != "rows"]:
        raise KforgeError(f"{operator} lacks {', '.join(f'{n}=...' for n in missing)}; it has {', '.join(known)}")
    for name, value in axes.items():
        number = isinstance(value, int)
        if contract.usual.get(name) == value:
            continue
        if name in _FLAGS and value not in (0, 1):
            raise KforgeError(f"{name}={value}: {operator}'s {name} is 0 or 1")
        if (number or name in contract.dynamic_axes) and name not in _FLAGS and not (number and _fits(value)):
            raise KforgeError(f"{name}={value}: {operator}'s {name} is a number of at least 1")
    static = {n: axes[n] for n in contract.static_axes if n in axes}
    try:
        if "rows" in contract.static_axes and "rows" not in static:
            static["rows"] = rows(Problem.of(operator, **static))
        dynamic = tuple(sorted((n, int(axes[n])) for n in contract.dynamic_axes))
        workload = Workload(Problem.of(operator, **static), dynamic)
        contract.tensors(workload)
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise KforgeError(f"there is no such {operator}: {error}") from None
    return workload


def _fits(value: Attr) -> bool:
    return isinstance(value, int) and 1 <= value <= _LARGEST
