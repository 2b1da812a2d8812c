"""The backend ``hip``: the same sources as ``cuda``'s, compiled ahead of time for a named AMD GPU by clang alone."""

from __future__ import annotations

from kforge.backends.gpu.verbs import ToolchainVerbs
from kforge.backends.hip.compilers import ARCHES, HipCompiler, find


class HipBackend(ToolchainVerbs):
    """See ``kforge.backends.verbs.Backend``."""

    name = "hip"
    language = "HIP"
    warps = ARCHES

    def find(self) -> HipCompiler | str:
        return find()
