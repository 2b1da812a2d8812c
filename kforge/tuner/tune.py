"""``kforge tune`` as a function: plan, search, judge, promote, and the table that shows what it came to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from kforge.core.defaults import PAGE_TOKENS
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.target import Target
from kforge.core.trial import NumericsClass
from kforge.engine.engine import Engine
from kforge.engine.kernel_set import named
from kforge.engine.measure import Comparison, Setting, compare, decode_setting, prefill_setting
from kforge.harness.turn import Turn
from kforge.models.graph import StepOptions
from kforge.models.model import Model
from kforge.models.workloads import WorkloadRow, modes, workloads
from kforge.registry.database import Registry
from kforge.targets.probe import measure_bandwidth
from kforge.tuner.coordinator import Coordinator, SearchOutcome
from kforge.tuner.engine_pairs import EnginePairs
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.layouts import Layouts, LayoutVerdict, changed
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import plan
from kforge.tuner.progress import Watcher
from kforge.tuner.promotion import EngineVerdict, Promotion
from kforge.tuner.proposals import Proposer
from kforge.tuner.serving import Serving, serving

TABLE_ROUNDS = 5
SIDES = {  # rows of the table: kernels, and torch's dtype for weights dequantised once
    "torch f32": ("none", "f32"),
    "torch bf16": ("none", "bf16"),
    "default": ("default", "f32"),
    "tuned": ("tuned", "f32"),
}


@dataclass(frozen=True)
class TuneResult:
    """What a run came to. ``table`` is tokens/s of torch, default and tuned kernels, interleaved, None without a model;
    ``serving``: what the model's calls get from now on."""

    run: str
    search: SearchOutcome
    engine: tuple[EngineVerdict, ...]
    layouts: tuple[LayoutVerdict, ...]
    table: Comparison | None
    serving: Serving


def tune(
    model: Model, options: TuneOptions, folder: RunFolder, registry: Registry, target: Target, watcher: Watcher,
    proposer: Proposer | None = None, turn: Turn | None = None,
) -> TuneResult:
    """One whole run, or the rest of one that was killed. Holds the registry's tuning lock while it measures.

    ``proposer``: writes templates that compete with the shipped ones. ``turn``: held by whoever measures.
    """
    if not folder.lines:
        folder.write(Event.STARTED, started(options, target))
    registry.begin_run(folder.id, options.model, target.identity, folder.path)
    ways = modes(options.batches, (options.context,), options.prefill)
    rows = step_rows(model, options)
    with registry.tuning_lock():
        coordinator = Coordinator(options, folder, registry, target, watcher, proposer, turn=turn)
        outcome = coordinator.run(plan(rows))
        accepted = awaiting_engine(registry, folder.id, target)
        verdicts: list[EngineVerdict] = []
        layouts: list[LayoutVerdict] = []

        def time_is_up() -> bool:
            return folder.used_seconds > options.budget_seconds

        if accepted or changed(folder.of(Event.SETTLED)):
            watcher.stage("running the engine with and without each winner")
            before = coordinator.snapshot
            pairs = EnginePairs.on(target, model, options, [*accepted, *before.kernels])
            with turn or nullcontext():
                layouts = Layouts(pairs, target.identity, registry, folder, watcher).confirm(
                    before, accepted, ways, time_is_up
                )
                promotion = Promotion(pairs, registry, folder, watcher)
                verdicts = promotion.promote(before, registry.snapshot(), accepted, ways, time_is_up)
        serves = serving(coordinator.snapshot, registry.snapshot(), folder.id, [r.workload for r in rows], target)
        watcher.stage("decoding with torch, default and tuned kernels")
        with turn or nullcontext():
            table = engine_table(model, options, _settings(options), watcher, target)
    folder.write(Event.TABLE, _table_json(table))
    ending = {"trials": outcome.trials, "accepted": len(accepted), "kept": len(outcome.kept)}
    folder.write(Event.FINISHED, {**ending, "serving": dataclasses.asdict(serves)})
    return TuneResult(folder.id, outcome, tuple(verdicts), tuple(layouts), table, serves)


def step_rows(model: Model, options: TuneOptions) -> list[WorkloadRow]:
    """Every operator call that the options ask to tune. Raises KforgeError where they ask for what cannot be."""
    step = StepOptions(kv=options.kv, act=options.act)
    rows = workloads(model, options.batches, (options.context,), options.prefill, step)
    if not any(options.only in row.workload.problem.without_layout.key for row in rows):
        raise KforgeError(f"no problem of {options.model} contains {options.only!r}; see: kforge workloads "
                          f"{options.model}")
    return rows


def started(options: TuneOptions, target: Target) -> dict:
    """The first line of a run's journal."""
    used = min(options.threads, target.cores)
    return {
        "options": options.to_json(),
        "target": target.name,
        "identity": target.identity,
        "bandwidth": target.best_bandwidth(used),
        "peaks": {name: peak.value * used / target.cores for name, peak in target.peaks},
    }


def awaiting_engine(registry: Registry, run: str, target: Target) -> list[KernelRecord]:
    """Kernels that this run's judge accepted and whose last word from the engine is still to come or to repeat; and
    those of earlier runs, or handed in (kforge try --submit), on which the engine has said nothing yet."""
    return [
        k
        for k in registry.snapshot().kernels
        if (k.run == run and k.state in (KernelState.ACCEPTED, KernelState.PROMOTED))
        or (
            k.state is KernelState.ACCEPTED
            and k.numerics is NumericsClass.EXACT  # the engine takes no others
            and k.target_identity == target.identity
            and len(registry.events(k.id)) == 1
        )
    ]


def _settings(options: TuneOptions) -> list[Setting]:
    return [*(decode_setting(b, 32, 48 if b == 1 else 24) for b in options.batches), prefill_setting(options.prefill)]


def engine_table(model: Model, options: TuneOptions, settings: Sequence[Setting], watcher: Watcher,
                 target: Target) -> Comparison:
    """Torch in both of its dtypes, default and tuned kernels of the target in one process, interleaved, with the
    bandwidth probed in every round. What does not fit into memory is left out with a note."""
    tokens = max(s.batch * (s.prompt + s.decode + PAGE_TOKENS) for s in settings)
    engines: dict[str, Engine] = {}
    for name, (kernels, dtype) in SIDES.items():
        try:
            engines[name] = Engine(
                model,
                kernels if kernels == "none" else named(kernels, target),
                threads=options.threads,
                kv=options.kv,
                act=options.act,
                kv_tokens=tokens,
                max_sequences=max(options.batches),
                torch_dtype=dtype,
                text=False,
            )
        except KforgeError as error:
            watcher.note(f"the table goes without {name}: {error}")
    try:
        return compare(engines, settings, TABLE_ROUNDS, lambda: measure_bandwidth(options.threads, seconds=0.1).value)
    finally:
        for engine in engines.values():
            engine.close()


def _table_json(table: Comparison) -> dict:
    return {
        "bandwidth": dataclasses.asdict(table.bandwidth) if table.bandwidth else None,
        "figures": [
            {
                "kernels": f.kernels,
                "setting": f.setting,
                "rate": dataclasses.asdict(f.rate),
                "ratio": dataclasses.asdict(f.ratio) if f.ratio else None,
                "python_share": f.python_share,
            }
            for f in table.figures
        ],
    }
