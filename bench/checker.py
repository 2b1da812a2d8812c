"""What the checker promises: the room that honest kernels leave below the bound, and how often mistakes are caught.

Every run of a check draws its shapes and inputs afresh, as a harness does. ``python bench/checker.py [--checks N]``
prints, per operator, the honest kernels' worst error over the bound and, per mistake, the share of N checks that caught
it with its lower 95 % confidence bound.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bench.alterations import Kernel, Subject
from bench.mistakes import subjects
from kforge.core.workload import Workload
from kforge.harness.cases import plan_cases
from kforge.harness.quantiles import proportion_upper
from kforge.harness.values import Mismatch, beyond_bound
from kforge.operators import Operator, Role, get

_BUDGET = 200_000_000  # operations of one check's references: what a mistake needs to show is in the cheap cases


@dataclass(frozen=True)
class Tally:
    """One kernel over many checks: in how many it was refused, and its worst error over the bound while it was not."""

    checks: int
    refused: int
    worst: float

    @property
    def at_least(self) -> float:
        """Lower 95 % confidence bound of the share refused."""
        return 1 - proportion_upper(self.checks - self.refused, self.checks)


def tallies(name: str, subject: Subject, checks: int) -> dict[str, Tally]:
    """Of every kernel, by its name, over the same checks."""
    operator = get(subject.workload.problem.operator)
    kernels = {**subject.honest, **subject.wrong}
    refused, worst = dict.fromkeys(kernels, 0), dict.fromkeys(kernels, 0.0)
    first = zlib.crc32(name.encode())
    with np.errstate(all="ignore"):
        for i in range(checks):
            for label, ratio in one_check(operator, subject.workload, kernels, first + 1000 * i).items():
                refused[label] += ratio == float("inf")
                worst[label] = max(worst[label], ratio if ratio < float("inf") else 0.0)
    return {label: Tally(checks, refused[label], worst[label]) for label in kernels}


def one_check(operator: Operator, workload: Workload, kernels: Mapping[str, Kernel], seed: int) -> dict[str, float]:
    """Each kernel's worst error over the bound in a check with this seed; infinity when it is beyond."""
    found = dict.fromkeys(kernels, 0.0)
    rng = np.random.default_rng(seed)
    for case in plan_cases(operator, workload, seed, _BUDGET):
        given = operator.inputs(case.workload, case.seed, case.distribution)
        bounds = operator.reference(case.workload, given)
        written = [spec for spec in operator.tensors(case.workload) if spec.role is not Role.IN]
        for label, kernel in kernels.items():
            if found[label] == float("inf"):
                continue
            outputs = kernel(operator, case.workload, given, rng)
            for spec in written:
                ratio = beyond_bound(spec.name, spec.dtype, outputs[spec.name], bounds[spec.name])
                found[label] = max(found[label], float("inf") if isinstance(ratio, Mismatch) else ratio)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--checks", type=int, default=100, help="checks per mistake")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    arguments = parser.parse_args()
    print("| operator | kernel | checks | refused | at least (95 %) | worst error / bound of those that passed |")
    print("|---|---|---|---|---|---|")
    for name, subject in subjects().items():
        if arguments.only not in name:
            continue
        for label, found in tallies(name, subject, arguments.checks).items():
            kind = "honest" if label in subject.honest else "wrong"
            sure = f"{found.at_least:.2%}" if kind == "wrong" else ""
            worst = f"{found.worst:.2f}" if found.refused < found.checks else ""
            print(f"| {name} | {kind}: {label} | {found.checks} | {found.refused} | {sure} | {worst} |", flush=True)


if __name__ == "__main__":
    main()
