"""The backend ``triton``: GPU kernels compiled ahead of time, for NVIDIA and AMD."""

from __future__ import annotations

from kforge.backends.triton import build as building
from kforge.backends.triton.installed import cannot_build
from kforge.backends.triton.stand_in import Interpreter, stand_in
from kforge.backends.verbs import StaticReport
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure
from kforge.core.workload import Workload


class TritonBackend:
    """See ``kforge.backends.verbs.Backend``."""

    name = "triton"

    def cannot_build(self, target: Target) -> str:
        return cannot_build(target)

    def cannot_run(self, target: Target) -> str:
        return f"kforge has no launcher for GPUs here: kernels for {target.name} are built and checked, not timed"

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        return building.build(candidate, target)

    def inspect(self, artifact: Artifact, workload: Workload, target: Target) -> StaticReport:
        from kforge.backends.gpu.binary import unpack
        from kforge.backends.gpu.cost import report

        return report(unpack(artifact.data), workload, target)

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> Interpreter | Failure:
        return stand_in(candidate, artifact, target)
