"""What backends for GPUs have in common: their artifacts are containers, and no launcher for GPUs is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from kforge.backends import fibers
from kforge.backends.gpu.binary import BinaryError, unpack
from kforge.backends.gpu.building import Toolchain, build
from kforge.backends.verbs import StaticReport
from kforge.core.errors import KforgeError
from kforge.core.image import Loadable
from kforge.core.launch import Launch
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure, FailureClass
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


class ToolchainVerbs(GpuVerbs, ABC):
    """The verbs of languages that a toolchain compiles whole and whose kernels fibers run. ``language``: as people say
    it; ``warps``: the architectures that are built for, and the threads of their warps."""

    language: str
    warps: Mapping[str, int]

    @abstractmethod
    def find(self) -> Toolchain | str:
        """The compiler, or why there is none to use."""

    def cannot_build(self, target: Target) -> str:
        if target.arch not in self.warps:
            return f"{self.language} kernels are built for {', '.join(self.warps)}, not {target.arch} ({target.name})"
        found = self.find()
        return found if isinstance(found, str) else ""

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        found = self.find()
        if isinstance(found, str):
            raise KforgeError(found)
        return build(candidate, target, found)

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> fibers.Fibers | Failure:
        return fibers.stand_in(candidate, self.warps[target.arch])
