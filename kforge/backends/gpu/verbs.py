"""What backends for GPUs have in common: their artifacts are containers, and no launcher for GPUs is here."""

from __future__ import annotations

from kforge.backends.gpu.binary import BinaryError, unpack
from kforge.backends.verbs import StaticReport
from kforge.core.image import Loadable
from kforge.core.launch import Launch
from kforge.core.target import Target
from kforge.core.trial import Artifact, Failure, FailureClass
from kforge.core.workload import Workload


class GpuVerbs:
    """The verbs of ``kforge.backends.verbs.Backend`` that do not depend on the language."""

    def cannot_run(self, target: Target) -> str:
        return f"kforge has no launcher for GPUs here: kernels for {target.name} are built and checked, not timed"

    def admit(self, data: bytes, target: Target) -> Loadable | Failure:
        return Failure(FailureClass.LOAD, self.cannot_run(target))

    def launches(self, data: bytes) -> tuple[Launch, ...]:
        try:
            return unpack(data).launches
        except BinaryError:
            return ()

    def inspect(self, artifact: Artifact, workload: Workload, target: Target) -> StaticReport:
        from kforge.backends.gpu.cost import report

        return report(unpack(artifact.data), workload, target)
