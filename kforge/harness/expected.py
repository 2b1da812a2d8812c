"""What timed calls must leave in their outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kforge.core.trial import Failure, FailureClass, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import solve
from kforge.harness.check import judge_outputs
from kforge.harness.values import differing_bits
from kforge.operators.base import Operator, Role


class Expected:
    """What timed calls must leave; for workloads too large for a reference, what the first verified call left."""

    def __init__(
        self, operator: Operator, workload: Workload, inputs: Mapping[str, np.ndarray], numerics: NumericsClass
    ) -> None:
        self._specs = [s for s in operator.tensors(workload) if s.role is not Role.IN]
        self._first: dict[str, np.ndarray] | None = None
        answer = solve(operator, workload, inputs, numerics)
        self._answer = answer if answer.bits is not None or answer.bounds is not None else None

    def verify(self, outputs: dict[str, np.ndarray]) -> Failure | None:
        if self._answer is not None:
            result = judge_outputs(self._specs, outputs, self._answer)
            return (
                Failure(result.kind, f"in a timed call {result.reason}", result.detail)
                if isinstance(result, Failure)
                else None
            )
        if self._first is None:
            self._first = outputs
            return None
        for spec in self._specs:
            if (found := differing_bits(spec.name, spec.dtype, outputs[spec.name], self._first[spec.name])) is not None:
                return Failure(FailureClass.NONDETERMINISTIC, "timed calls on the same inputs differ", str(found))
        return None
