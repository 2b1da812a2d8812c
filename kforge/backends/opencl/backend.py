"""The backend ``opencl``: OpenCL C through the machine's own drivers, for devices that share its memory."""

from __future__ import annotations

from kforge.backends.opencl import build as building
from kforge.backends.opencl.devices import device_of
from kforge.backends.opencl.image import ImageError, parse
from kforge.backends.verbs import StandIn, StaticReport
from kforge.core.errors import KforgeError
from kforge.core.image import Loadable
from kforge.core.launch import Launch
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure
from kforge.core.workload import Workload


class OpenClBackend:
    """See ``kforge.backends.verbs.Backend``."""

    name = "opencl"

    def cannot_build(self, target: Target) -> str:
        if "opencl" not in target.backends:
            return f"{target.name} is no OpenCL device"
        return "" if device_of(target) else f"this machine has no {target.name}, whose driver builds for it"

    def cannot_run(self, target: Target) -> str:
        if why := self.cannot_build(target):
            return why
        device = device_of(target)
        assert device
        if device.gated and device.shares_memory:
            return ""
        return (f"kforge runs OpenCL kernels on PoCL's processor device only, not on {device.name} of "
                f"{device.platform}: there it would have to run them before the process is locked down, or allow more "
                "system calls than a kernel may have")

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        return building.build(candidate, target)

    def admit(self, data: bytes, target: Target) -> Loadable | Failure:
        return building.load(data, target)

    def launches(self, data: bytes) -> tuple[Launch, ...]:
        try:
            return parse(data).launches
        except ImageError as error:
            raise KforgeError(f"a stored OpenCL kernel cannot be read: {error}; run kforge kernels verify") from None

    def inspect(self, artifact: Artifact, workload: Workload, target: Target) -> StaticReport:
        from kforge.operators import get
        from kforge.targets.roofline import time_limit

        resources = (("binary_bytes", artifact.report.text_bytes), ("launches", len(artifact.launches)))
        try:
            limit = time_limit(get(workload.problem.operator).cost(workload), target, target.cores)
        except KforgeError as error:
            return StaticReport(resources, (), 0.0, 0.0, "", (str(error),))
        return StaticReport(resources, (), 0.0, limit.seconds, limit.bound_by,
                            ("the time is the roofline's: no model of the instructions",))

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> StandIn | Failure:
        raise KforgeError(f"nothing stands in for {target.name}: where there is no device PoCL is one, as a target of "
                          "its own (apt-get install pocl-opencl-icd)")
