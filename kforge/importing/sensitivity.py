"""Whether an imported function's result says anything: one that hardly depends on its input measures no kernel."""

from __future__ import annotations

import numpy as np

from kforge.core.workload import Workload
from kforge.operators.base import Bound, Distribution
from kforge.operators.graph import Kind
from kforge.operators.imported import Imported

CONSTANT = "its output hardly depends on its input: not counted"
UNDECIDED = "float32 leaves a part of its output undecided at usual inputs: not counted"
_DRAWS = 3
_BATCH = 4
_MOST_FREE = 0.05  # of an output's elements, each of which any value passes
_HARDLY = 1e-4  # change over the output's largest value


def flags_of(operator: Imported) -> tuple[str, ...]:
    """Found by evaluating the reference at a few draws of the arguments, the parameters being the same.

    Parameters are drawn as they are for checks; of a mask among the buffers the graph itself makes its own two values
    (``kforge.importing.masks``).
    """
    workload = Workload.of(operator.problem, B=min(operator.batch, _BATCH) if operator.graph.dynamic else 1)
    first = operator.inputs(workload, 0, Distribution.NORMAL)
    arguments = [given.name for given in operator.graph.given if given.kind is Kind.ARGUMENT]
    found = [operator.reference(workload, first)]
    for seed in range(1, _DRAWS):
        other = operator.inputs(workload, seed, Distribution.NORMAL)
        found.append(operator.reference(workload, {**first, **{name: other[name] for name in arguments}}))
    if any(_undecided(bound) for bound in found[0].values()):
        return (UNDECIDED,)
    if any(_constant(bound, [other[name] for other in found[1:]]) for name, bound in found[0].items()):
        return (CONSTANT,)
    return ()


def _undecided(bound: Bound) -> bool:
    free = np.zeros(bound.reference.shape, bool) if bound.free is None else bound.free
    return bool(free.mean() > _MOST_FREE or (free | ~np.isfinite(bound.reference)).mean() > 0.5)


def _constant(first: Bound, others: list[Bound]) -> bool:
    """Whether the draws differ by less than the bounds, or by next to nothing."""
    values = np.nan_to_num(first.reference, posinf=0, neginf=0)
    largest = float(np.abs(values).max(initial=0))
    for other in others:
        change = np.abs(np.nan_to_num(other.reference, posinf=0, neginf=0) - values)
        if (change > first.bound + other.bound).any() and float(change.max(initial=0)) > _HARDLY * largest:
            return False
    return True
