"""What timed calls must leave in their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kforge.core.trial import Failure, FailureClass, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import Answer, solve
from kforge.harness.check import judge_outputs
from kforge.harness.values import differing_bits
from kforge.operators.base import Operator, Role


class Expected:
    """What timed calls must leave, per number of a call, which says what it reads; for workloads too large for a
    reference, what the first verified call with that number left.
    """

    def __init__(self, operator: Operator, workload: Workload, inputs: Callable[[int], Mapping[str, np.ndarray]],
                 numerics: NumericsClass) -> None:
        self._specs = [s for s in operator.tensors(workload) if s.role is not Role.IN]
        self._operator = operator
        self._workload = workload
        self._inputs = inputs
        self._numerics = numerics
        self._answers: dict[int, Answer] = {}
        self._first: dict[int, dict[str, np.ndarray]] = {}

    def verify(self, outputs: dict[str, np.ndarray], number: int) -> Failure | None:
        """Holds the outputs of the call with this number against what is right."""
        if number not in self._answers:
            self._answers[number] = solve(self._operator, self._workload, self._inputs(number), self._numerics)
        answer = self._answers[number]
        if answer.bits is not None or answer.bounds is not None:
            result = judge_outputs(self._specs, outputs, answer)
            return (
                Failure(result.kind, f"in a timed call {result.reason}", result.detail)
                if isinstance(result, Failure)
                else None
            )
        first = self._first.setdefault(number, outputs)
        for spec in self._specs:
            if (found := differing_bits(spec.name, spec.dtype, outputs[spec.name], first[spec.name])) is not None:
                return Failure(FailureClass.NONDETERMINISTIC, "timed calls on the same inputs differ", str(found))
        return None
