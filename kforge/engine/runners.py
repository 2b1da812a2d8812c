"""Which runner computes an engine's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge.engine.cache_groups import page_bytes
from kforge.engine.runner import Runner, RunnerOptions
from kforge.engine.steps import StepLimits

if TYPE_CHECKING:
    from kforge.engine.executors import Executor
    from kforge.engine.kernel_set import KernelSet
    from kforge.engine.weights import Weights
    from kforge.models.model import Model


class Runners:
    """Makes the runners of one engine, the target model's first: all use the same kernels, and take turns on the same
    threads, or those of the one would spin on the cores that the other needs.

    ``kernels`` as for ``Engine``.
    """

    def __init__(self, kernels: str | KernelSet, options: RunnerOptions) -> None:
        if isinstance(kernels, str) and kernels != "none":
            from kforge.engine.kernel_set import named

            kernels = named(kernels)
        self._kernels = kernels
        self._options = options
        self._executor: Executor | None = None
        self._promised = 0  # bytes of KV caches so far that take memory only as they fill

    def make(self, model: Model, limits: StepLimits, weights: Weights | None) -> Runner:
        """Raises ``KforgeError`` for a model that does not fit into memory, or lacks a kernel."""
        if isinstance(self._kernels, str):
            from kforge.engine.torch_runner import TorchRunner

            made: Runner = TorchRunner(model, limits, self._options, self._promised)
        else:
            from kforge.engine.native_runner import NativeRunner

            made = native = NativeRunner(model, self._kernels, limits, self._options, weights, self._executor,
                                         self._promised)
            self._executor = self._executor or native.executor
        if not made.isolated:  # shared memory is committed at once
            self._promised += limits.pages * page_bytes(model.config, limits.page_tokens, self._options.kv)
        return made
