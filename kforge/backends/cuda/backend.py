"""The backend ``cuda``: CUDA C++ compiled ahead of time for a named NVIDIA GPU."""

from __future__ import annotations

from kforge.backends import fibers
from kforge.backends.cuda.compilers import ARCHES, compiler, find
from kforge.backends.gpu.building import build
from kforge.backends.gpu.verbs import GpuVerbs
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure

_WARP = 32


class CudaBackend(GpuVerbs):
    """See ``kforge.backends.verbs.Backend``."""

    name = "cuda"

    def cannot_build(self, target: Target) -> str:
        if target.arch not in ARCHES:
            return f"CUDA kernels are built for {', '.join(ARCHES)}, not {target.arch} ({target.name})"
        found = find()
        return found if isinstance(found, str) else ""

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        return build(candidate, target, compiler())

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> fibers.Fibers | Failure:
        return fibers.stand_in(candidate, _WARP)
