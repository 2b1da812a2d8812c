"""The backend ``cpp``: C++ for the CPU, through the native kernel ABI."""

from __future__ import annotations

import platform

from kforge.backends.cpp import compilers
from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import ARCHITECTURES, build
from kforge.backends.cpp.flags import host_processor
from kforge.backends.verbs import StandIn, StaticReport
from kforge.core.errors import KforgeError
from kforge.core.image import Loadable
from kforge.core.launch import Launch
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure
from kforge.core.workload import Workload


class CppBackend:
    """See ``kforge.backends.verbs.Backend``."""

    name = "cpp"

    def cannot_build(self, target: Target) -> str:
        if target.arch not in ARCHITECTURES:
            return f"C++ kernels are for {' and '.join(ARCHITECTURES)}, not {target.arch}"
        if target.arch != platform.machine():
            return compilers.missing_cross(target)
        from kforge.native.compilers import find_compilers

        return "" if target.compilers or find_compilers() else "there is no compiler (g++ or clang++)"

    def cannot_run(self, target: Target) -> str:
        from kforge.targets.files import host

        here = host(quick=True)
        return "" if target.identity == here.identity else f"this machine is {here.model}, not {target.name}"

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        return build(candidate, target)

    def admit(self, data: bytes, target: Target) -> Loadable | Failure:
        return admit(data)

    def launches(self, data: bytes) -> tuple[Launch, ...]:
        return ()

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
        """An emulator for another architecture; this machine for another processor of its own, whose instructions it
        has."""
        image = admit(artifact.data, target.arch)
        if isinstance(image, Failure):
            return image
        if target.arch != platform.machine():
            from kforge.harness.emulation import EmulatedCaller

            return EmulatedCaller(image, candidate.problem.operator, target.arch)
        if missing := set(target.features) - host_processor()[1]:
            raise KforgeError(f"this machine cannot stand in for {target.name}: it lacks {', '.join(sorted(missing))}")
        from kforge.harness.callers import HostCaller

        return HostCaller(image, candidate.problem.operator)
