"""The backend ``hip``: the same sources as ``cuda``'s, compiled ahead of time for a named AMD GPU by clang alone."""

from __future__ import annotations

from kforge.backends import fibers
from kforge.backends.gpu.building import build
from kforge.backends.gpu.verbs import GpuVerbs
from kforge.backends.hip.compilers import ARCHES, compiler, find
from kforge.core.target import Target
from kforge.core.trial import Artifact, Candidate, Failure


class HipBackend(GpuVerbs):
    """See ``kforge.backends.verbs.Backend``."""

    name = "hip"

    def cannot_build(self, target: Target) -> str:
        if target.arch not in ARCHES:
            return f"HIP kernels are built for {', '.join(ARCHES)}, not {target.arch} ({target.name})"
        found = find()
        return found if isinstance(found, str) else ""

    def build(self, candidate: Candidate, target: Target) -> Artifact | Failure:
        return build(candidate, target, compiler())

    def stand_in(self, candidate: Candidate, artifact: Artifact, target: Target) -> fibers.Fibers | Failure:
        return fibers.stand_in(candidate, ARCHES[target.arch])
