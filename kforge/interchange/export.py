"""Kernels and trials of the registry as a FlashInfer-Bench dataset: a new folder, written whole or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kforge.backends import templates
from kforge.backends.defaults import exact_templates
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.target import Target
from kforge.core.trial import Candidate, FailureClass, NumericsClass
from kforge.core.workload import Problem, Workload
from kforge.interchange import evaluations, solutions
from kforge.interchange.contracts import (
    PACKED,
    definition_of,
    expressible,
    known,
    operator_of,
    tables_of,
    workload_of,
)
from kforge.interchange.folders import new_folder, require_new
from kforge.interchange.mapping import workload_at
from kforge.interchange.schema import Correctness, Definition, Environment, Evaluation, Solution, Trace
from kforge.operators import Distribution, get
from kforge.registry.trials import Recorded, recorded

if TYPE_CHECKING:
    from kforge.registry.database import Registry

_STATES = (KernelState.CHECKED, KernelState.ACCEPTED, KernelState.PROMOTED)


@dataclass(frozen=True)
class Exported:
    """How much was written. ``left_out``: what the schema or the registry does not give, in sentences."""

    definitions: int
    workloads: int
    solutions: int
    traces: int
    blob_bytes: int
    left_out: tuple[str, ...]


def export(registry: Registry, folder: Path, target: Target, operator: str = "") -> Exported:
    """Writes ``folder``, which must not exist or be empty. ``target``: this machine; ``operator``: only this one's.

    Raises KforgeError where there is nothing to export, or the folder cannot be written.
    """
    require_new(folder)
    kernels = [k for k in registry.snapshot().kernels if operator in ("", k.problem.operator)]
    trials = [t for t in recorded(Path(registry.name)) if operator in ("", t.problem.operator)]
    if not kernels and not trials:
        what = f" for {operator}" if operator else ""
        raise KforgeError(f"registry {registry.name} has no kernel or trial{what}: nothing to export")
    with new_folder(folder) as draft:
        job = _Export(registry, _Writer(draft), target)
        job.kernels(kernels)
        job.trials(trials)
        return job.finish()


class _Export:
    """One export. Kernels first: a trial of a kernel that was judged at the same place is that kernel's."""

    def __init__(self, registry: Registry, writer: _Writer, target: Target) -> None:
        self._registry = registry
        self._writer = writer
        self._target = target
        self._left: Counter[str] = Counter()
        self._judged: set[tuple[str, str, str]] = set()  # run, workload, candidate
        self._correct: dict[tuple[str, NumericsClass], Correctness] = {}
        self._numerics: dict[str, NumericsClass] = {}  # of exported solutions, by candidate
        self._defaults: dict[str, str] = {}  # problem -> the shipped default, as rendered

    def kernels(self, kernels: Iterable[KernelRecord]) -> None:
        for kernel in kernels:
            if kernel.state not in _STATES:
                self._left[f"kernels that are {kernel.state}"] += 1
                continue
            if not (known(kernel.problem) and get(kernel.problem.operator).version == kernel.operator_version):
                self._left["kernels of an operator, or of a version of one, that this kforge does not have"] += 1
                continue
            if not expressible(kernel.problem):
                self._left["kernels whose outputs have an extent that no input has"] += 1
                continue
            source = self._registry.store.get(kernel.source_hash).decode()
            self._writer.solution(kernel.problem, solutions.of_kernel(kernel, source, self._target))
            self._numerics[kernel.candidate_hash] = kernel.numerics
            workload = Workload(kernel.problem, kernel.bucket)
            self._writer.workload(workload)
            if not kernel.seconds:
                self._left["evaluations of kernels that no run has timed"] += 1
                continue
            events = self._registry.events(kernel.id)
            engine = events[-1].reason if len(events) > 1 else ""
            environment = self._environment(kernel.target_identity, kernel.target_name, kernel.compiler)
            made = evaluations.of_kernel(
                kernel, events[0].evidence, engine, environment, self._correctness(workload, kernel.numerics)
            )
            self._trace(workload, kernel.candidate_hash, made)
            self._judged.add((kernel.run, workload.key, kernel.candidate_hash))

    def trials(self, trials: Sequence[Recorded]) -> None:
        timed = {(t.run, t.workload.key, t.candidate_hash): t.seconds for t in trials if t.seconds}
        for trial in trials:
            if (trial.run, trial.workload.key, trial.candidate_hash) in self._judged:
                continue
            if trial.failure is FailureClass.HARNESS:
                self._left["trials in which the harness failed, not the candidate"] += 1
                continue
            if not known(trial.problem):
                self._left["trials of an operator that this kforge does not have"] += 1
                continue
            if not expressible(trial.problem):
                self._left["trials of kernels whose outputs have an extent that no input has"] += 1
                continue
            if trial.failure is None and not trial.seconds:
                self._left["trials without a time"] += 1
                continue
            if trial.candidate_hash not in self._numerics and not self._rendered(trial):
                continue
            default = self._default(trial.problem) if trial.target_identity == self._target.identity else ""
            reference = timed.get((trial.run, trial.workload.key, default)) or 0.0
            numerics = self._numerics[trial.candidate_hash]
            shown = Correctness() if trial.failure else self._correctness(trial.workload, numerics)
            self._writer.workload(trial.workload)
            self._trace(
                trial.workload,
                trial.candidate_hash,
                evaluations.of_trial(trial, self._environment(trial.target_identity, "", ""), shown, reference),
            )

    def finish(self) -> Exported:
        left = tuple(f"{count} {what}" for what, count in self._left.items())
        return self._writer.finish(left)

    def _rendered(self, trial: Recorded) -> bool:
        """Whether the trial's source could be made again from its template, to the same hash; then it is a solution."""
        if trial.target_identity != self._target.identity:
            self._left["trials of other targets: their sources are not kept"] += 1
            return False
        candidate = self._render(trial)
        if candidate is None or candidate.hash != trial.candidate_hash:
            self._left["trials whose templates are no longer what they were: their sources are not kept"] += 1
            return False
        self._writer.solution(trial.problem, solutions.of_candidate(candidate, self._target))
        self._numerics[candidate.hash] = candidate.numerics
        return True

    def _render(self, trial: Recorded) -> Candidate | None:
        template = next((t for t in templates.load(trial.problem.operator) if t.path == trial.template), None)
        if template is None:
            return None
        try:
            return template.render(trial.problem, self._target, dict(trial.params))
        except KforgeError:  # its parameters are others now
            return None

    def _default(self, problem: Problem) -> str:
        """Hash of the shipped default; "" where there is none."""
        if problem.key not in self._defaults:
            fits = (t for t in exact_templates(problem.operator) if t.applies(problem, self._target) is None)
            first = next(fits, None)
            self._defaults[problem.key] = (
                first.render(problem, self._target, first.defaults(problem, self._target)).hash if first else ""
            )
        return self._defaults[problem.key]

    def _trace(self, workload: Workload, candidate_hash: str, evaluation: Evaluation) -> None:
        self._writer.trace(workload, solutions.solution_name(workload.problem, candidate_hash), evaluation)

    def _correctness(self, workload: Workload, numerics: NumericsClass) -> Correctness:
        key = (evaluations.small(workload).key, numerics)
        if key not in self._correct:
            self._correct[key] = evaluations.correctness_of(workload, numerics)
        return self._correct[key]

    def _environment(self, identity: str, name: str, compiler: str) -> Environment:
        here = identity == self._target.identity and self._target.model
        libs = {"kforge_target": identity}
        if compiler:
            family, _, version = compiler.partition(" ")
            libs[family] = version
        return Environment(hardware=str(here or name or f"target {identity}"), libs=libs)


class _Writer:
    """Files of a dataset, in the places that its package looks for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._definitions: dict[str, Definition] = {}
        self._solutions: set[str] = set()
        self._workloads: dict[str, dict[str, Trace]] = {}  # definition -> workload -> line
        self._traces: dict[str, list[Trace]] = {}
        self._blob_bytes = 0

    def solution(self, problem: Problem, solution: Solution) -> None:
        self._define(problem)
        if solution.name in self._solutions:
            return
        self._solutions.add(solution.name)
        place = f"solutions/{solutions.AUTHOR}/{operator_of(problem)}/{solution.definition}/{solution.name}.json"
        self._write(place, solution.text(1).encode())

    def workload(self, workload: Workload) -> None:
        definition = self._define(workload.problem)
        lines = self._workloads.setdefault(definition.name, {})
        if workload.key in lines:
            return
        folder = f"blob/workloads/{definition.op_type}/{definition.name}"
        made = workload_of(workload.problem, workload, folder)
        lines[workload.key] = Trace(definition=definition.name, workload=made)
        if tables := tables_of(workload):
            self._tensors(f"{folder}/{definition.name}_{made.uuid}.safetensors", tables)

    def trace(self, workload: Workload, solution: str, evaluation: Evaluation) -> None:
        """Of a workload and a solution that were written."""
        name = definition_of(workload.problem).name
        at = self._workloads[name][workload.key].workload
        self._traces.setdefault(name, []).append(
            Trace(definition=name, workload=at, solution=solution, evaluation=evaluation)
        )

    def finish(self, left_out: tuple[str, ...]) -> Exported:
        for name, workloads in self._workloads.items():
            self._lines(f"workloads/{self._definitions[name].op_type}/{name}.jsonl", workloads.values())
        for name, traces in self._traces.items():
            self._lines(f"traces/{solutions.AUTHOR}/{self._definitions[name].op_type}/{name}.jsonl", traces)
        return Exported(
            len(self._definitions),
            sum(map(len, self._workloads.values())),
            len(self._solutions),
            sum(map(len, self._traces.values())),
            self._blob_bytes,
            left_out,
        )

    def _define(self, problem: Problem) -> Definition:
        definition = definition_of(problem)
        if definition.name not in self._definitions:
            self._definitions[definition.name] = definition
            self._write(f"definitions/{definition.op_type}/{definition.name}.json", definition.text(1).encode())
            self._weights(problem, definition)
        return definition

    def _weights(self, problem: Problem, definition: Definition) -> None:
        """The packed weight that all workloads of a definition share."""
        operator = get(problem.operator)
        one = workload_at(problem, dict.fromkeys(operator.dynamic_axes, 1))
        packed = [spec.name for spec in operator.tensors(one) if spec.dtype in PACKED]
        if packed:
            inputs = operator.inputs(one, 0, Distribution.NORMAL)
            folder = f"blob/workloads/{definition.op_type}/{definition.name}"
            self._tensors(
                f"{folder}/{definition.name}_weights.safetensors", {name: inputs[name].view("int8") for name in packed}
            )

    def _tensors(self, place: str, tensors: dict) -> None:
        from safetensors.numpy import save

        data = save(tensors)
        self._blob_bytes += len(data)
        self._write(place, data)

    def _lines(self, place: str, lines: Iterable[Trace]) -> None:
        self._write(place, "".join(f"{line.text()}\n" for line in lines).encode())

    def _write(self, place: str, data: bytes) -> None:
        path = self._folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
