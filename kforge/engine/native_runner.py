"""Steps as programs of kernels: built once per bucket, replayed with one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kforge.core.errors import KforgeError
from kforge.core.workload import Problem
from kforge.engine.buffers import Buffers
from kforge.engine.cache_groups import page_bytes
from kforge.engine.executors import Executor, LaunchList, LocalExecutor
from kforge.engine.isolation import IsolatedExecutor
from kforge.engine.kernel_set import ChosenKernel, KernelSet
from kforge.engine.memory import require_memory
from kforge.engine.runner import KernelUse, LaunchTime, RunnerOptions
from kforge.engine.steps import StepLimits, StepShape
from kforge.engine.weights import Weights, with_rows
from kforge.models.graph import Call, StepOptions, step_calls
from kforge.models.model import Model
from kforge.models.roles import Matrix, roles_of, shape_of


class _Point(NamedTuple):
    """What programs are looked up by. Context is rounded up to a power of two, or every step would be a new point."""

    tokens: int
    sequences: int
    rows: int
    context: int

    def largest(self, limits: StepLimits) -> StepShape:
        """The step at this point with the longest context: what its kernels are chosen for."""
        return StepShape(self.tokens, self.sequences, self.rows, min(self.context, limits.context))


@dataclass(frozen=True)
class _Built:
    program: LaunchList
    chosen: tuple[ChosenKernel, ...]  # by launch
    calls: tuple[Call, ...]  # by launch


class NativeRunner:
    """Runs steps with kernels of a ``KernelSet``; see ``kforge.engine.runner.Runner``."""

    def __init__(self, model: Model, kernels: KernelSet, limits: StepLimits, options: RunnerOptions,
                 weights: Weights | None = None, executor: Executor | None = None, promised: int = 0) -> None:
        """``executor``: another runner's, to share its threads; that one is closed last. ``promised``: bytes that
        others are going to use."""
        kv, rows = options.kv, options.rows
        config = model.config
        stored = sum(model.format(r.role, r.layer).traits.bits_per_weight / 8 * np.prod(shape_of(config, r.role))
                     for r in roles_of(config) if isinstance(r.role, Matrix))
        cache = limits.pages * page_bytes(config, limits.page_tokens, kv)
        backend = kernels.target.backends[0]
        if backend != "cpp" and options.isolate is False:
            raise KforgeError(f"kernels of backend {backend} run in a process of their own only: leave out "
                              "--no-isolate")
        isolate = backend != "cpp" or (kernels.from_elsewhere if options.isolate is None else options.isolate)
        weights = weights.for_executor(isolate) if weights else Weights(model, isolate)
        require_memory(config.name, max(int(stored * 1.05) - weights.bytes, 0), cache, promised=promised)
        self._kernels = kernels
        threads = options.threads or kernels.target.cores
        self.isolated = isolate
        self._owns_executor = executor is None
        made = IsolatedExecutor(threads, backend) if isolate and not executor else None
        self.executor: Executor = executor or made or LocalExecutor(threads)
        calls = step_calls(model, StepOptions(kv=kv, page=limits.page_tokens, act=options.act))
        self._calls = with_rows(calls, kernels.rows if rows is None else lambda _: rows)
        self.buffers = Buffers(model, limits, kv, isolate)
        self.inputs, self.greedy, self.logits = self.buffers.inputs, self.buffers.greedy, self.buffers.logits
        self._tensors = [self.buffers.tensors(call, weights) for call in self._calls]
        for arena in (self.buffers.given, *weights.arenas):
            self.executor.share(arena, writable=False)
        for arena in self.buffers.worked:
            self.executor.share(arena, writable=True)
        self._vocab = config.vocab
        self._built: dict[tuple[str, ...], _Built] = {}
        self._at: dict[_Point, LaunchList] = {}
        self._last: LaunchList | None = None
        # Builds happen and missing kernels show when the engine is made, not amid the first request.
        first = _Point(1, 1, 1, limits.page_tokens)
        self._at[first] = self._program(first)

    def run(self, shape: StepShape) -> None:
        point = _Point(shape.tokens, shape.sequences, shape.rows, 1 << (shape.max_context - 1).bit_length())
        program = self._at.get(point)
        if program is None:
            program = self._at[point] = self._program(point)
        self.buffers.set_axes(shape)
        program.run()
        self._last = program
        if self.isolated and shape.rows:
            self._require_tokens(self.greedy[: shape.rows])

    def kernels_used(self) -> list[KernelUse]:
        counts: dict[tuple[str, str], int] = {}
        first: dict[tuple[str, str], tuple[ChosenKernel, Call]] = {}
        for built in self._built.values():
            for kernel, call, calls in zip(built.chosen, built.calls, built.program.calls, strict=True):
                key = (call.problem.key, kernel.candidate_hash)
                if calls:
                    counts[key] = counts.get(key, 0) + calls
                    first.setdefault(key, (kernel, call))
        return [KernelUse(key[0], call.label, key[1], k.template, k.tier.value, k.numerics.value, counts[key])
                for key, (k, call) in first.items()]

    def profile(self, replays: int = 20) -> list[LaunchTime]:
        """Median seconds of every launch of the program that ran last, repeated on its last inputs."""
        built = next((b for b in self._built.values() if b.program is self._last), None)
        if built is None:
            return []
        times = built.program.profile(replays)
        return [LaunchTime(c.label, c.problem.key, t) for c, t in zip(built.calls, times, strict=True)]

    def close(self) -> None:
        for built in self._built.values():
            built.program.close()
        if self._owns_executor:
            self.executor.close()

    def _require_tokens(self, greedy: np.ndarray) -> None:
        """Of kernels that are not trusted: what is used as an index must be one."""
        if greedy.min() < 0 or greedy.max() >= self._vocab:
            raise KforgeError(f"a kernel gave token {greedy.tolist()}, outside 0 .. {self._vocab - 1}: "
                              "run kforge kernels verify, or --kernels default")

    def _program(self, point: _Point) -> LaunchList:
        """The program of the kernels that this point wants; points that want the same share it."""
        wanted = [i for i, call in enumerate(self._calls) if point.rows or not call.kind.per_sequence]
        shape = point.largest(self.inputs.limits)
        chosen: dict[tuple[Problem, bool], ChosenKernel] = {}
        for i in wanted:
            call = self._calls[i]
            key = (call.problem, call.kind.per_sequence)
            if key not in chosen:
                chosen[key] = self._kernels.choose(call.problem, self.buffers.dynamic(call, shape))
        self.buffers.set_axes(shape)
        identity = (str(bool(point.rows)), *(kernel.candidate_hash for kernel in chosen.values()))
        if identity not in self._built:
            kernels = tuple(chosen[self._calls[i].problem, self._calls[i].kind.per_sequence] for i in wanted)
            program = self.executor.program()
            for i, kernel in zip(wanted, kernels, strict=True):
                call = self._calls[i]
                program.add(kernel, self._tensors[i], self.buffers.axes(call), self.buffers.scalars(call), call.label,
                            self.buffers.max_axes(call))
            self._built[identity] = _Built(program, kernels, tuple(self._calls[i] for i in wanted))
        program = self._built[identity].program
        program.reserve()  # scratch need not grow with the axes, so the largest step's is not enough
        return program
