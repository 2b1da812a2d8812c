"""The backend ``triton``: GPU kernels compiled ahead of time, for NVIDIA and AMD."""

from __future__ import annotations

from kforge.backends.gpu.verbs import GpuVerbs
from kforge.backends.triton import build as building
from kforge.backends.triton.installed import cannot_build
from kforge.backends.triton.stand_in import Interpreter, stand_in
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure


class TritonBackend(GpuVerbs):
    """See ``kforge.backends.verbs.Backend``."""

    name = "triton"

    def cannot_build(self, target: Target) -> str:
        return cannot_build(target)

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        return building.build(candidate, target)

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> Interpreter | Failure:
        return stand_in(candidate, artifact, target)
