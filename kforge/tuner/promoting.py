"""One accepted kernel before the engine, at once: what a tune of its model would do with it at its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kforge.core.defaults import ACTS
from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.target import Target
from kforge.core.workload import Problem
from kforge.models.model import Model
from kforge.models.workloads import Mode, modes
from kforge.registry.database import Registry
from kforge.tuner.engine_pairs import EnginePairs
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.options import TuneOptions
from kforge.tuner.progress import Watcher
from kforge.tuner.promotion import EngineVerdict, Promotion
from kforge.tuner.tune import started, step_rows

_LOCK = "kforge kernels promote"


@dataclass(frozen=True)
class Promoted:
    """What the engine said of a kernel in each mode that calls it, and what it is since then."""

    kernel: int
    state: KernelState
    reason: str
    verdicts: tuple[EngineVerdict, ...]


def refusal(kernel: KernelRecord, target: Target) -> str:
    """Why the engine need not be asked about it here; "" when it can be."""
    if kernel.target_identity != target.identity:
        return f"it was judged on {kernel.target_name}, and only this machine's engine can be run"
    if kernel.state is not KernelState.ACCEPTED:
        return f"it is {kernel.state}; only accepted ones wait for the engine"
    return ""


def least(model: Model) -> tuple[Mode, ...]:
    """Modes in which a kernel must not lose whoever asks: those of ``kforge tune``, as far as the model holds them."""
    longest = max(min(512, model.config.context_length - 1), 1)  # a prompt leaves room for its answer
    return tuple(modes(context=(longest,), prefill=longest))


def calling(problem: Problem, options: TuneOptions) -> TuneOptions:
    """The options with the KV cache and the activations without which no step calls the problem."""
    static, act = dict(problem.static), options.act
    if "act" in static:
        weight = WeightFormat(problem.str("weight"))
        act = next((a for a in (act, *ACTS) if weight.act(a) == static["act"]), act)  # some no step of an engine takes
    return dataclasses.replace(options, kv=str(static.get("kv", options.kv)), act=act)


def promote(kernel: KernelRecord, model: Model, options: TuneOptions, folder: RunFolder, registry: Registry,
            target: Target, watcher: Watcher, beside: Sequence[Mode] = ()) -> Promoted:
    """Runs the engine on ``model`` with and without the kernel in every mode of ``options`` and in those ``beside``, on
    the KV cache and activations that call it, and promotes it when none that calls it is slower or says another token.
    Holds the registry's tuning lock. A run folder in which nothing was measured is removed.

    Raises KforgeError for a kernel that does not wait for the engine (``refusal``) or that no step of the model calls.
    """
    try:
        return _promote(kernel, model, options, folder, registry, target, watcher, beside)
    finally:
        if not folder.measured:
            folder.discard()


def _promote(kernel: KernelRecord, model: Model, options: TuneOptions, folder: RunFolder, registry: Registry,
             target: Target, watcher: Watcher, beside: Sequence[Mode]) -> Promoted:
    if why := refusal(kernel, target):
        raise KforgeError(f"kernel {kernel.id}: {why}")
    options = calling(kernel.problem, options)
    step_rows(model, dataclasses.replace(options, only=kernel.problem.without_layout.key,
                                         batches=options.batches or (1,)))
    folder.write(Event.STARTED, started(options, target))
    registry.begin_run(folder.id, options.model, target.identity, folder.path)
    told = len(registry.events(kernel.id))
    with registry.tuning_lock(_LOCK):
        before = registry.snapshot()
        watcher.stage("running the engine with and without it")
        pairs = EnginePairs.on(target, model, options, [kernel, *before.kernels])
        ways = list(dict.fromkeys([*beside, *modes(options.batches, (options.context,), options.prefill)]))
        verdicts = Promotion(pairs, registry, folder, watcher).promote(before, before, [kernel], ways, lambda: False)
    now = next(k for k in registry.snapshot().kernels if k.id == kernel.id)
    events = registry.events(kernel.id)
    uncalled = f"the engine calls it in none of these modes; its bucket is {kernel.bucket_key}"
    folder.write(Event.FINISHED, {"trials": 0, "accepted": 1, "kept": 0})
    return Promoted(kernel.id, now.state, events[-1].reason if len(events) > told else uncalled, tuple(verdicts))
