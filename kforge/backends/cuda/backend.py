"""The backend ``cuda``: CUDA C++ compiled ahead of time for a named NVIDIA GPU."""

from __future__ import annotations

from kforge.backends.cuda.compilers import ARCHES, CudaCompiler, find
from kforge.backends.gpu.verbs import ToolchainVerbs


class CudaBackend(ToolchainVerbs):
    """See ``kforge.backends.verbs.Backend``."""

    name = "cuda"
    language = "CUDA"
    warps = ARCHES

    def find(self) -> CudaCompiler | str:
        return find()
