"""Is a candidate right whose device is not here? The same cases and gates, on what stands in for the device."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.backends.verbs import Backend
from kforge.core.target import Target
from kforge.core.trial import Candidate, Failure, NumericsClass
from kforge.core.workload import Workload
from kforge.harness.cases import Answers, plan_cases
from kforge.harness.check import check
from kforge.operators import get

OFFLINE_OPERATIONS = 20_000_000  # of all cases together: what stands in for a device is a thousand times slower


@dataclass(frozen=True)
class CheckedOffline:
    """A candidate that was right, but never ran on its device: built, checked, not timed."""

    cases: int
    max_error_ratio: float  # worst |out - ref| over the bound; 0 where bits were compared
    numerics: NumericsClass
    where: str  # what stood in for the device


def check_offline(backend: Backend, candidate: Candidate, workload: Workload, target: Target, seed: int, *,
                  operations: int = OFFLINE_OPERATIONS) -> CheckedOffline | Failure:
    """Build, and check at shapes of the workload's bucket as far as ``operations`` go. Raises KforgeError where nothing
    stands in for the target's device."""
    artifact = backend.build(candidate, target)
    if isinstance(artifact, Failure):
        return artifact
    stand_in = backend.stand_in(candidate, artifact, target)
    if isinstance(stand_in, Failure):
        return stand_in
    operator = get(candidate.problem.operator)
    try:
        cases = plan_cases(operator, workload, seed, operations)
        found = check(stand_in, operator, candidate.numerics, cases, Answers(), 1)
    finally:
        stand_in.close()
    if isinstance(found, Failure):
        return found
    return CheckedOffline(found.cases, found.max_error_ratio, candidate.numerics, stand_in.where)
