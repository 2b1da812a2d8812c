"""What a candidate is checked at: shapes of its bucket, distributions and seeds that a proposer never sees."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kforge.core.trial import NumericsClass
from kforge.core.workload import Workload
from kforge.operators.base import Bound, Distribution, Operator, Part, Role

# What references may cost: scalar code does about half a billion operations a second, numpy ten times as many.
SPEC_OPERATIONS = 3_000_000_000  # beyond: rows drawn at random are held against the bits, all others against the bound
REFERENCE_OPERATIONS = 40_000_000_000  # beyond: rows drawn at random are
_SAMPLE_OPERATIONS = 500_000_000  # of a specification of such rows, at least one; of a reference ten times as many
_BUDGET_OPERATIONS = 6_000_000_000  # of all cases together; the cheapest come first
_ALL_KINDS = 15  # rows of one call in which every distribution finds a place
_REPEATED = 3  # cases of the cheapest shape that are repeated: one of them is strided
_TINY, _MORE = 100_000, 64  # operations of a call that is so cheap that it gets so many more rounds
_BYTE_COST = 30  # operations that drawing and packing a byte of input costs about as much as
_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Case:
    """``strided``: rows of the activations lie apart, as slices of a wider tensor do in the engine. ``repeated``: run
    again with another poison and on one thread; what these show hardly depends on the values, so not every case is.
    """

    workload: Workload
    seed: int
    distribution: Distribution
    strided: bool = False
    repeated: bool = True

    def __str__(self) -> str:
        axes = ",".join(f"{name}={value}" for name, value in self.workload.dynamic)
        return f"{axes} {self.distribution}{' strided' if self.strided else ''} seed {self.seed}"


@dataclass(frozen=True)
class Answer:
    """A case's inputs and what must come out: bits for *exact*, bounds for *relaxed* and beside the bits of large exact
    cases. ``bits_rows``, ``bound_rows``: the rows of the outputs that these are for, all when None.
    """

    inputs: Mapping[str, np.ndarray]
    bits: Mapping[str, np.ndarray] | None
    bounds: Mapping[str, Bound] | None
    bits_rows: np.ndarray | None = None
    bound_rows: np.ndarray | None = None

    @property
    def bytes(self) -> int:
        arrays = [*self.inputs.values(), *(self.bits or {}).values()]
        for bound in (self.bounds or {}).values():
            arrays += [bound.reference, bound.bound]
        return sum(a.nbytes for a in arrays)


def operations(operator: Operator, workload: Workload) -> int:
    return sum(count for _, count in operator.cost(workload).operations)


def call_seconds_allowed(operator: Operator, workload: Workload) -> float:
    """Time limit of one call: a hundred times slower than scalar code, and at least two seconds."""
    return 2.0 + operations(operator, workload) / 2e7


def plan_cases(operator: Operator, workload: Workload, seed: int, budget: int = _BUDGET_OPERATIONS) -> tuple[Case, ...]:
    """Cheap cases first, so that a wrong candidate is found out early.

    Every distribution on the cheapest shape: one after another where a call has few rows (and ordinary values again and
    again where it is tiny), else those that need a call of their own and then rows of all kinds together. Then every
    other shape of the bucket, and the workload itself, with a distribution that the seed chooses. Each as far as the
    budget of operations goes; the cheapest shape and the largest always.
    """
    shapes = sorted({*operator.shapes(workload, seed), workload}, key=lambda w: (operations(operator, w), w.key))
    shapes = [s for s in shapes if operations(operator, s) <= REFERENCE_OPERATIONS] or shapes[:1]
    kinds = list(Distribution)
    first = [Distribution.NORMAL, Distribution.ONE_HOT, Distribution.MIXED, Distribution.ROWS, Distribution.ROWS]
    if _rows(shapes[0]) < _ALL_KINDS:
        first = [Distribution.NORMAL, Distribution.ONE_HOT, *(k for k in kinds if k not in first)]
        first += [Distribution.MIXED, Distribution.ROWS]
        if operations(operator, shapes[0]) < _TINY:  # one rounding that is left out shows in one row of a few
            first += [Distribution.NORMAL, Distribution.MIXED] * _MORE
    order = [(shapes[0], kind) for kind in first]
    order += [(shape, kinds[(i + seed) % len(kinds)]) for i, shape in enumerate(shapes[1:])]
    cases: list[Case] = []
    spent = 0
    for i, (shape, kind) in enumerate(order):
        spent += operations(operator, shape) + _BYTE_COST * sum(spec.bytes for spec in operator.tensors(shape))
        if cases and spent > budget and not (shape != shapes[0] and shape == shapes[-1]):
            continue
        repeated = i < _REPEATED or shape != shapes[0]
        cases.append(Case(shape, seed + i, kind, strided=i % 3 == 2, repeated=repeated))
    return tuple(cases)


def _rows(workload: Workload) -> int:
    """Rows that have a distribution each with ``ROWS``: sequences of attention, tokens elsewhere, the batch of what was
    imported."""
    axes = workload.axes
    return next(axes[name] for name in ("S", "M", "R", "T", "B") if name in axes)


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
    """References for these inputs; at sizes where they are not affordable, of rows that nobody can guess."""
    count = operations(operator, workload)
    exact = numerics is NumericsClass.EXACT
    if exact and count <= SPEC_OPERATIONS:
        return Answer(inputs, operator.spec(workload, inputs), None)
    answer = Answer(inputs, None, None)
    if exact and (some := _some(operator, workload, inputs, _SAMPLE_OPERATIONS)) is not None:
        answer = replace(answer, bits=operator.spec(some.part.workload, some.part.inputs), bits_rows=some.rows)
    if count <= REFERENCE_OPERATIONS or (some := _some(operator, workload, inputs, 10 * _SAMPLE_OPERATIONS)) is None:
        return replace(answer, bounds=operator.reference(workload, inputs))
    return replace(answer, bounds=operator.reference(some.part.workload, some.part.inputs), bound_rows=some.rows)


@dataclass(frozen=True, eq=False)
class _Some:
    """Rows of a call's outputs, and the call that has these alone."""

    rows: np.ndarray
    part: Part


def _some(operator: Operator, workload: Workload, inputs: Mapping[str, np.ndarray], limit: int) -> _Some | None:
    """Rows drawn at random, as many as ``limit`` operations are enough for and at least one; None where rows are not
    independent.
    """
    rows = next(spec for spec in operator.tensors(workload) if spec.role is not Role.IN).shape[0]
    number = max(1, min(rows, limit * rows // max(operations(operator, workload), 1)))
    drawn = np.array(sorted(secrets.SystemRandom().sample(range(rows), number)))
    part = operator.part(workload, inputs, drawn)
    return None if part is None else _Some(drawn, part)
