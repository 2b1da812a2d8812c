"""The backend ``cpp``: C++ for the CPU, through the native kernel ABI."""

from __future__ import annotations

import platform

from kforge.backends.cpp.build import build
from kforge.backends.verbs import StandIn, StaticReport
from kforge.core.errors import KforgeError
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure
from kforge.core.workload import Workload


class CppBackend:
    """See ``kforge.backends.verbs.Backend``."""

    name = "cpp"

    def cannot_build(self, target: Target) -> str:
        if target.arch != platform.machine():
            return f"this machine's compilers build {platform.machine()}, not {target.arch}"
        return "" if target.compilers else "there is no compiler (g++ or clang++)"

    def cannot_run(self, target: Target) -> str:
        from kforge.targets.files import host

        here = host(quick=True)
        return "" if target.identity == here.identity else f"this machine is {here.model}, not {target.name}"

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        return build(candidate, target)

    def inspect(self, artifact: Artifact, workload: Workload, target: Target) -> StaticReport:
        from kforge.operators import get
        from kforge.targets.roofline import time_limit

        report = artifact.report
        resources = (("spills", report.spills), ("text_bytes", report.text_bytes))
        try:
            limit = time_limit(get(workload.problem.operator).cost(workload), target, target.cores)
        except KforgeError as error:
            return StaticReport(resources, report.instruction_mix, 0.0, 0.0, "", (str(error),))
        return StaticReport(resources, report.instruction_mix, 0.0, limit.seconds, limit.bound_by,
                            ("the time is the roofline's: no model of the instructions",))

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> StandIn | Failure:
        raise KforgeError(f"nothing here stands in for {target.name}")
