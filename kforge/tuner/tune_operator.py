"""``kforge tune`` of an imported operator: the search and the judge of any run, without an engine behind them.

Nothing but the judge can be asked about such a kernel, since no engine calls it: what the judge accepts is promoted.
"""

from __future__ import annotations

import dataclasses

from kforge.backends.generic import templates_for
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.core.target import Target
from kforge.core.trial import Candidate
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.harness.turn import Turn
from kforge.operators import get
from kforge.operators.imported import Imported
from kforge.registry.database import Registry
from kforge.tuner.attempt import Submission, judged
from kforge.tuner.contenders import Incumbent
from kforge.tuner.coordinator import Coordinator
from kforge.tuner.generated import placed
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import Task, task_at
from kforge.tuner.progress import Watcher
from kforge.tuner.proposals import Proposer
from kforge.tuner.serving import serving
from kforge.tuner.tune import TuneResult, started

ON_THE_JUDGES_WORD = "no engine calls an imported operator, so the judge's word promotes it"


def imported(name: str) -> Imported | None:
    """The imported operator of this name, None where there is none. Raises KforgeError for one that is damaged."""
    try:
        operator = get(name)
    except KeyError:
        return None
    return operator if isinstance(operator, Imported) else None


def tune_operator(
    operator: Imported, options: TuneOptions, folder: RunFolder, registry: Registry, target: Target,
    watcher: Watcher, proposer: Proposer | None = None, turn: Turn | None = None,
) -> TuneResult:
    """One whole run, or the rest of one that was killed. Holds the registry's tuning lock while it measures.

    Templates are generated from the operator's graph; ``proposer`` writes others that compete with them. ``turn``:
    held by whoever measures. Raises KforgeError where the run was begun for another function of this name.
    """
    task = operator_task(operator, options)
    if not folder.lines:
        folder.write(Event.STARTED, {**started(options, target), "problem": task.problem.key})
    elif (begun := folder.of(Event.STARTED)[0].get("problem")) != task.problem.key:
        raise KforgeError(f"run {folder.id} was begun for {begun}, and {operator.name} is {task.problem.key} now: "
                          "import that again, or start a new run")
    registry.begin_run(folder.id, options.subject, target.identity, folder.path)
    with registry.tuning_lock():
        generated = placed(templates_for(operator.graph, operator.name), operator.name, folder.path)
        coordinator = Coordinator(options, folder, registry, target, watcher, proposer, generated, turn)
        outcome = coordinator.run([task])
        accepted = promote_judged(registry, folder.id)
    calls = [bucket.workload for bucket in task.buckets]
    serves = serving(coordinator.snapshot, registry.snapshot(), folder.id, calls, target, engine=False)
    ending = {"trials": outcome.trials, "accepted": accepted, "kept": len(outcome.kept)}
    folder.write(Event.FINISHED, {**ending, "serving": dataclasses.asdict(serves)})
    return TuneResult(folder.id, outcome, (), (), None, serves)


def operator_task(operator: Imported, options: TuneOptions) -> Task:
    """The operator at the buckets of the batches asked for, else at the one that it was imported with.

    Raises KforgeError for batches of an operator that has none, and for a flagged one.
    """
    if why := operator.unfit:
        raise KforgeError(f"{operator.name} is flagged: {why}; a wrong kernel would pass its checks, so none is tuned")
    if options.batches and not operator.graph.dynamic:
        raise KforgeError(f"{operator.name} is defined for one shape only: leave --batch out")
    return task_at(operator.problem, [{"B": batch} for batch in options.batches or (operator.batch,)])


def promote_judged(registry: Registry, run: str) -> int:
    """Promotes what this run's judge accepted, as far as an earlier process of the run did not; how many there are."""
    mine = [k for k in registry.snapshot().kernels if k.run == run]
    for kernel in mine:
        if kernel.state is KernelState.ACCEPTED:
            registry.set_state(kernel.id, KernelState.PROMOTED, ON_THE_JUDGES_WORD)
    return len(mine)


def hand_in(
    candidate: Candidate, workload: Workload, serving: Incumbent, harness: Harness, registry: Registry
) -> Submission:
    """``attempt.submit`` for a kernel of an imported operator: judged in the same way, at its bucket against what
    serves there. What is accepted is promoted at once. Raises KforgeError while a tune measures.
    """
    return judged(candidate, workload, serving, harness, registry, ON_THE_JUDGES_WORD)
