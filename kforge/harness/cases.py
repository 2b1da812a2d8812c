"""What a candidate is checked at: shapes of its bucket, distributions and seeds that a proposer never sees."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kforge.core.trial import NumericsClass
from kforge.core.workload import Workload
from kforge.operators.base import Bound, Distribution, Operator

HUGE_OPERATIONS = 4_000_000_000  # beyond this a scalar reference takes seconds: the workload is checked through its shapes
_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Case:
    """``strided``: rows of the activations lie apart, as slices of a wider tensor do in the engine."""

    workload: Workload
    seed: int
    distribution: Distribution
    strided: bool = False

    def __str__(self) -> str:
        axes = ",".join(f"{name}={value}" for name, value in self.workload.dynamic)
        return f"{axes} {self.distribution}{' strided' if self.strided else ''} seed {self.seed}"


@dataclass(frozen=True)
class Answer:
    """A case's inputs with what must come out of them: bits for *exact*, bounds for *relaxed* (and for small exact cases)."""

    inputs: Mapping[str, np.ndarray]
    bits: Mapping[str, np.ndarray] | None
    bounds: Mapping[str, Bound] | None

    @property
    def bytes(self) -> int:
        arrays = [*self.inputs.values(), *(self.bits or {}).values()]
        for bound in (self.bounds or {}).values():
            arrays += [bound.reference, bound.bound]
        return sum(a.nbytes for a in arrays)


def operations(operator: Operator, workload: Workload) -> int:
    return sum(count for _, count in operator.cost(workload).operations)


def is_huge(operator: Operator, workload: Workload) -> bool:
    return operations(operator, workload) > HUGE_OPERATIONS


def call_seconds_allowed(operator: Operator, workload: Workload) -> float:
    """Time limit of one call: a hundred times slower than scalar code, and at least two seconds."""
    return 2.0 + operations(operator, workload) / 2e7


def plan_cases(operator: Operator, workload: Workload, seed: int) -> tuple[Case, ...]:
    """Cheap cases first, so that a wrong candidate is found out early; each distribution at least once."""
    shapes = sorted(operator.shapes(workload, seed), key=lambda w: operations(operator, w))
    shapes = [s for s in shapes if not is_huge(operator, s)]
    if not shapes:
        shapes = [workload]
    cases = []
    distributions = list(Distribution)
    for i in range(max(len(shapes), len(distributions))):
        # Offset by the seed, so that a shape meets another distribution the next time.
        distribution = distributions[(i + seed) % len(distributions)]
        cases.append(Case(shapes[i % len(shapes)], seed + i, distribution, strided=i % 3 == 2))
    if not is_huge(operator, workload):
        cases.append(Case(workload, seed, Distribution.NORMAL))
    return tuple(cases)


class Answers:
    """References are dear: kept per (workload, seed, distribution, numerics), the oldest dropped beyond a gigabyte."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, Distribution, NumericsClass], Answer] = OrderedDict()

    def get(self, operator: Operator, case: Case, numerics: NumericsClass) -> Answer:
        key = (case.workload.key, case.seed, case.distribution, numerics)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        answer = solve(operator, case.workload, operator.inputs(case.workload, case.seed, case.distribution), numerics)
        self._kept[key] = answer
        while len(self._kept) > 1 and sum(a.bytes for a in self._kept.values()) > _CACHE_BYTES:
            self._kept.popitem(last=False)
        return answer


def solve(operator: Operator, workload: Workload, inputs: Mapping[str, np.ndarray], numerics: NumericsClass) -> Answer:
    exact = numerics is NumericsClass.EXACT
    return Answer(
        inputs,
        operator.spec(workload, inputs) if exact else None,
        None if exact else operator.reference(workload, inputs),
    )


