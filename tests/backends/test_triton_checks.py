"""Without a GPU: every Triton template is right where it is checked, and no planted fault passes the same check."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from test_triton_templates import candidate_of
from triton_faults import Base, Fault, bases, faults

from kforge.backends.triton.stand_in import Interpreter
from kforge.core.trial import Candidate, Failure, FailureClass
from kforge.harness.cases import Answers, Case
from kforge.harness.check import CheckResult, check
from kforge.operators import get
from kforge.operators.base import Distribution
from kforge.targets import load_target

pytest.importorskip("triton")

SEED = 11
AGAIN = (Distribution.NORMAL, Distribution.SPARSE, Distribution.SPARSE)  # what chance arranges: signs of zeros, places
FOUND = {FailureClass.INCORRECT, FailureClass.FENCE, FailureClass.CRASH, FailureClass.NONDETERMINISTIC,
         FailureClass.INPUT_MODIFIED}
_answers = Answers()


def cases_of(base: Base) -> list[Case]:
    """Every distribution at the base's problem, rows strided in turn; the first is run twice."""
    return [Case(base.workload, SEED + i, kind, strided=i % 2 == 1, repeated=i == 0)
            for i, kind in enumerate([*Distribution, *AGAIN])]


def verdict(candidate: Candidate, base: Base) -> CheckResult | Failure:
    stand_in = Interpreter(candidate, candidate.launches, load_target("nvidia-h200"))
    try:
        return check(stand_in, get(candidate.problem.operator), candidate.numerics, cases_of(base), _answers, 1)
    finally:
        stand_in.close()


def missed(fault: Fault) -> str:
    """What is wrong with how a fault was found; "" when it was."""
    base = bases[fault.base]
    candidate = candidate_of(base, load_target("nvidia-h200"))
    found = verdict(replace(candidate, source=fault.planted(candidate.source)), base)
    if not isinstance(found, Failure):
        return f"{fault} passed, at {found.max_error_ratio:.3g} of the bound"
    return "" if found.kind in FOUND else f"{fault}: {found}"


def test_a_right_kernel_passes_and_a_wrong_one_does_not() -> None:
    base = bases["silu_mul"]
    assert isinstance(verdict(candidate_of(base, load_target("nvidia-h200")), base), CheckResult)
    assert not missed(next(fault for fault in faults if fault.base == "silu_mul"))


@pytest.mark.slow
@pytest.mark.parametrize("name", bases)
def test_templates_are_right(name: str) -> None:
    found = verdict(candidate_of(bases[name], load_target("nvidia-h200")), bases[name])
    assert isinstance(found, CheckResult), found
    assert found.max_error_ratio <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", bases)
def test_every_planted_fault_is_found(name: str) -> None:
    mine = [fault for fault in faults if fault.base == name]
    with ThreadPoolExecutor(2) as pool:
        assert [said for said in pool.map(missed, mine) if said] == []
