"""The last check before a kernel is accepted, on shapes and seeds that nobody sees, before or after.

They are drawn from the operating system's randomness when the check begins and are kept nowhere. A failure says which
operator and which class of failure; a value, an index or an axis could be learnt from, so they are left out. Nothing
that a proposer reads (a trial, a verdict, a journal) can hold what it was checked with.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from kforge.core.trial import Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import Answers, Case, operations, plan_cases
from kforge.harness.check import check
from kforge.harness.process import Process
from kforge.harness.repeats import repeat
from kforge.harness.row_counts import check_row_counts
from kforge.operators.base import Distribution, Operator

_PLANS = 2  # each with inner shapes of its own
_BUDGET_OPERATIONS = 500_000_000  # of the references of one plan: about a second
_REPEAT_SECONDS = 2.0  # a kernel of less than 0.2 ms makes all its calls in that time


@dataclass(frozen=True)
class HeldOut:
    """A passed check: how many cases it had, how many calls of all sorts of row counts, and how many calls were
    compared to find a race."""

    cases: int
    row_counts: int
    calls: int


def held_out_cases(operator: Operator, workload: Workload) -> list[Case]:
    """Fresh at every call."""
    cases: list[Case] = []
    for _ in range(_PLANS):
        cases += plan_cases(operator, workload, secrets.randbits(60), _BUDGET_OPERATIONS)
    return cases


def check_held_out(process: Process, operator: Operator, workload: Workload, numerics: NumericsClass,
                   threads: int) -> HeldOut | Failure:
    """Every case, calls of all sorts of row counts, then the cheapest case many times over."""
    cases, answers = held_out_cases(operator, workload), Answers()
    found = check(process, operator, numerics, cases, answers, threads)
    if isinstance(found, Failure):
        return told(found, operator)
    row_counts = check_row_counts(process, operator, workload, numerics, threads,
                                  np.random.default_rng(secrets.randbits(128)))
    if isinstance(row_counts, Failure):
        return told(row_counts, operator)
    cheapest = min((c for c in cases if c.distribution is Distribution.NORMAL),
                   key=lambda case: operations(operator, case.workload))
    calls = 0
    if threads > 1:
        done = repeat(process, operator, cheapest, answers.get(operator, cheapest, numerics), threads, _REPEAT_SECONDS)
        if isinstance(done, Failure):
            return told(done, operator)
        calls = done
    return HeldOut(len(cases), row_counts, calls)


def told(failure: Failure, operator: Operator) -> Failure:
    """What may be said of a failure: its class, and of which operator."""
    return Failure(failure.kind, f"the held-out check of {operator.name} failed: {failure.kind.value}")
