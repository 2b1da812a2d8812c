"""Is a candidate right? Every gate decides; a lint never does."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kforge.backends.verbs import Caller
from kforge.core.trial import Failure, FailureClass, NumericsClass
from kforge.harness.cases import Answer, Answers, Case, call_seconds_allowed, operations
from kforge.harness.process import POISONS
from kforge.harness.values import Mismatch, beyond_bound, differing_bits
from kforge.operators.base import Operator, Role, TensorSpec

_ALONE_OPERATIONS = 1_000_000_000  # the run on one thread is left out beyond this: shapes of the bucket cover it


@dataclass(frozen=True)
class CheckResult:
    """``max_error_ratio``: worst error over its bound in all cases; 0 when bits were compared."""

    max_error_ratio: float
    cases: int


def check(process: Caller, operator: Operator, numerics: NumericsClass, cases: Sequence[Case], answers: Answers,
          threads: int) -> CheckResult | Failure:
    """``process``: a ``kforge.harness.process.Process``, or what stands in for a device.

    Runs every case once and the ``repeated`` ones three times: with two poisons on all threads, and on one thread.
    Stops at the first failure. In the second run one thread, another in each case, begins when the others are through
    or wait for it: who reads what it should have written first, without waiting, reads poison.

    The runs on all threads must agree to the bit; for *exact* so must the one on a single thread, and all of them with
    the order specification. For *relaxed* every output is within the operator's bound of the reference.
    """
    worst = 0.0
    for case in cases:
        answer = answers.get(operator, case, numerics)
        result = check_case(process, operator, numerics, case, answer, threads)
        if isinstance(result, Failure):
            return result
        worst = max(worst, result)
    return CheckResult(worst, len(cases))


def check_case(process: Caller, operator: Operator, numerics: NumericsClass, case: Case, answer: Answer,
               threads: int) -> float | Failure:
    specs = [spec for spec in operator.tensors(case.workload) if spec.role is not Role.IN]
    count = operations(operator, case.workload)
    seconds = call_seconds_allowed(operator, case.workload)

    def run(n: int, poison: int, late: int | None = None) -> dict[str, np.ndarray] | Failure:
        fence = 1 + secrets.randbelow(255)
        return process.run_once(case.workload, answer.inputs, n, poison, fence, case.strided, seconds, late)

    first = run(threads, POISONS[0])
    if isinstance(first, Failure):
        return _at(first, case)
    worst = judge_outputs(specs, first, answer)
    if isinstance(worst, Failure):
        return _at(_explained(worst, specs, first, operator, case, answer), case)
    if not case.repeated:
        return worst
    late = case.seed % threads
    second = run(threads, POISONS[1], late)
    if isinstance(second, Failure):
        return _at(second, case)
    if (different := _first_difference(specs, first, second)) is not None:
        reason = "two runs on the same inputs differ"
        if threads > 1:
            reason += f" (in the second, thread {late} begins when all others are through or wait)"
        if _is_poison(different, second, POISONS[1]):
            return _at(
                Failure(FailureClass.INCORRECT, "the kernel left an output element unwritten", str(different)), case
            )
        return _at(Failure(FailureClass.NONDETERMINISTIC, reason, str(different)), case)
    if threads > 1 and count <= _ALONE_OPERATIONS:
        alone = run(1, POISONS[0])
        if isinstance(alone, Failure):
            return _at(alone, case)
        if numerics is NumericsClass.EXACT and (different := _first_difference(specs, first, alone)) is not None:
            reason = f"runs on {threads} threads and on one differ"
            return _at(Failure(FailureClass.NONDETERMINISTIC, reason, str(different)), case)
        if isinstance(again := judge_outputs(specs, alone, answer), Failure):
            return _at(again, case)
    return worst


def judge_outputs(specs: Sequence[TensorSpec], outputs: Mapping[str, np.ndarray], answer: Answer) -> float | Failure:
    """Worst error over its bound, or INEXACT / INCORRECT with the first wrong element."""
    worst = 0.0
    for spec in specs:
        if answer.bits is not None:
            value = _rows(outputs[spec.name], answer.bits_rows)
            mismatch = differing_bits(spec.name, spec.dtype, value, answer.bits[spec.name])
            if mismatch is not None:
                return Failure(FailureClass.INEXACT, "the output differs from the order specification",
                               str(_at_row(mismatch, answer.bits_rows)))
        if answer.bounds is not None:
            value = _rows(outputs[spec.name], answer.bound_rows)
            ratio = beyond_bound(spec.name, spec.dtype, value, answer.bounds[spec.name])
            if isinstance(ratio, Mismatch):
                return Failure(FailureClass.INCORRECT, "the output is beyond the operator's error bound",
                               str(_at_row(ratio, answer.bound_rows)))
            worst = max(worst, ratio)
    return worst


def _rows(output: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    return output if rows is None else output[rows]


def _at_row(mismatch: Mismatch, rows: np.ndarray | None) -> Mismatch:
    """With the index that it has in the whole output."""
    return mismatch if rows is None else replace(mismatch, index=(int(rows[mismatch.index[0]]), *mismatch.index[1:]))


def _explained(failure: Failure, specs: Sequence[TensorSpec], outputs: Mapping[str, np.ndarray], operator: Operator,
               case: Case, answer: Answer) -> Failure:
    """Tells an unwritten element from a wrong one, and a wrong sum from one in another order: a repairer must know."""
    for spec in specs:
        raw = np.ascontiguousarray(outputs[spec.name]).reshape(-1).view(np.uint8).reshape(-1, spec.dtype.size)
        if (unwritten := np.flatnonzero((raw == POISONS[0]).all(axis=1))).size and spec.role is Role.OUT:
            at = [int(i) for i in np.unravel_index(int(unwritten[0]), spec.shape)]
            detail = f"{spec.name}{at} was not written ({unwritten.size} of {len(raw)} elements)"
            return Failure(FailureClass.INCORRECT, "the kernel left output elements unwritten", detail)
    if failure.kind is FailureClass.INEXACT and answer.bounds is None:
        bounded = judge_outputs(
            specs, outputs, Answer(answer.inputs, None, operator.reference(case.workload, answer.inputs))
        )
        return bounded if isinstance(bounded, Failure) else failure
    return failure


def _first_difference(
    specs: Sequence[TensorSpec], a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]
) -> Mismatch | None:
    for spec in specs:
        if (found := differing_bits(spec.name, spec.dtype, b[spec.name], a[spec.name])) is not None:
            return found
    return None


def _is_poison(where: Mismatch, outputs: Mapping[str, np.ndarray], poison: int) -> bool:
    element = outputs[where.tensor][where.index]
    return np.asarray(element).tobytes() == bytes([poison]) * np.asarray(element).nbytes


def _at(failure: Failure, case: Case) -> Failure:
    return Failure(
        failure.kind, failure.reason, f"{failure.detail}; case: {case}" if failure.detail else f"case: {case}"
    )
