"""Calls of all sorts of row counts, with rows of all distributions, for the price of one reference.

Rows of these operators are independent of one another: a call on some rows of a larger one must leave what stands in
these rows of the larger one's answer. So one answer, of rows of every distribution, is enough for any number of calls,
also where a weight is so large that only a few cases of its own can be drawn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kforge.core.trial import Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import Answer, Case, operations, solve
from kforge.harness.check import check_case
from kforge.harness.process import Process
from kforge.operators.base import Distribution, Operator

_KINDS = len(Distribution) - 1  # rows of the large call, at least: of every distribution
_OPERATIONS = 1_000_000_000  # of the large call, beyond that many rows
_CALLS = 100  # at most, each with another number of rows as far as the bucket has them
_SECONDS = 4.0  # after as many calls as there are kinds


def check_row_counts(process: Process, operator: Operator, workload: Workload, numerics: NumericsClass, threads: int,
                     rng: np.random.Generator) -> int | Failure:
    """How many calls were right: none where rows depend on one another."""
    if not operator.row_axis:
        return 0
    plan = plan_rows(operator, workload, int(rng.integers(1 << 60)))
    whole, counts = plan.whole, plan.counts
    inputs = operator.inputs(whole, int(rng.integers(1 << 60)), Distribution.ROWS)
    answer = solve(operator, whole, inputs, numerics)
    order = rng.permutation(whole.axes[operator.row_axis])
    calls = np.resize(rng.permutation(counts), min(_CALLS, max(len(counts), _KINDS)))
    started, done, made = time.monotonic(), 0, 0
    for i, count in enumerate(calls.tolist()):
        if i >= _KINDS and time.monotonic() - started > _SECONDS:
            break
        rows = np.resize(np.roll(order, -done), count)
        done += count
        part = operator.part(whole, inputs, rows)
        assert part is not None
        case = Case(part.workload, 0, Distribution.ROWS, strided=bool(rng.integers(2)), repeated=False)
        wrong = check_case(process, operator, numerics, case, _of_rows(answer, part.inputs, rows), threads)
        if isinstance(wrong, Failure):
            return wrong
        made += 1
    return made


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The large call, and the numbers of rows of the bucket (int64) that are not larger."""

    whole: Workload
    counts: np.ndarray


def plan_rows(operator: Operator, workload: Workload, seed: int) -> RowPlan:
    """At least a row of every distribution, and more as far as they are cheap."""
    axis = operator.row_axis
    shapes = sorted(operator.shapes(workload, seed), key=lambda shape: shape.axes[axis])
    low, top = shapes[0].axes[axis], shapes[-1]
    each = max(operations(operator, top) // top.axes[axis], 1)
    rows = max(_KINDS, low, min(top.axes[axis], _OPERATIONS // each))
    whole = Workload.of(top.problem, top.count, top.phase, **{**top.axes, axis: rows})
    return RowPlan(whole, np.arange(low, min(rows, top.axes[axis]) + 1))


def _of_rows(answer: Answer, inputs: Mapping[str, np.ndarray], rows: np.ndarray) -> Answer:
    """What must come out for these rows; the bits where they are known for all."""
    if answer.bits is not None and answer.bits_rows is None:
        return Answer(inputs, {name: bits[rows] for name, bits in answer.bits.items()}, None)
    assert answer.bounds is not None and answer.bound_rows is None
    bounds = {name: bound.rows(rows) for name, bound in answer.bounds.items()}
    return Answer(inputs, None, bounds)
