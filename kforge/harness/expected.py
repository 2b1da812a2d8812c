"""What timed calls must leave in their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kforge.core.trial import Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import Answer, solve
from kforge.harness.check import judge_outputs
from kforge.operators.base import Operator, Role


class Expected:
    """What timed calls must leave, per number of a call: which says what it reads."""

    def __init__(self, operator: Operator, workload: Workload, inputs: Callable[[int], Mapping[str, np.ndarray]],
                 numerics: NumericsClass) -> None:
        self._specs = [s for s in operator.tensors(workload) if s.role is not Role.IN]
        self._operator = operator
        self._workload = workload
        self._inputs = inputs
        self._numerics = numerics
        self._answers: dict[int, Answer] = {}

    def verify(self, outputs: dict[str, np.ndarray], number: int) -> Failure | None:
        """Holds the outputs of the call with this number against what is right."""
        if number not in self._answers:
            self._answers[number] = solve(self._operator, self._workload, self._inputs(number), self._numerics)
        answer = self._answers[number]
        result = judge_outputs(self._specs, outputs, answer)
        if isinstance(result, Failure):
            return Failure(result.kind, f"in a timed call {result.reason}", result.detail)
        return None
