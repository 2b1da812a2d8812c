"""What of a FlashInfer-Bench dataset kforge can work on: definitions onto operators, workloads, solutions.

A definition is one of kforge's own exports; or its signature fits an operator and its reference, run in the sandbox,
computes what the operator does; or its reference becomes an operator of its own; or there is a reason why not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from kforge.core.errors import KforgeError
from kforge.core.words import one_line
from kforge.core.workload import Problem, Workload
from kforge.harness.sandbox import describe
from kforge.interchange import agreement, schema
from kforge.interchange.attention import AttentionTranslation
from kforge.interchange.contracts import own
from kforge.interchange.dataset import Broken, Dataset
from kforge.interchange.dense import (
    ArgmaxTranslation,
    LinearTranslation,
    RmsNormTranslation,
    RowsTranslation,
    SiluMulTranslation,
)
from kforge.interchange.mapping import Foreign, Translation
from kforge.interchange.schema import Definition, Solution

_ADOPTED = "its reference is an operator now, in float32"
ENTRY = "kforge_kernel"  # the function that kforge's kernels define
_HEADERS = "kforge"  # folder of the headers that they include

RULES: dict[str, type[Foreign]] = {
    "rmsnorm": RmsNormTranslation,
    "fused_add_rmsnorm": RmsNormTranslation,
    "norm": RmsNormTranslation,
    "gemm": LinearTranslation,
    "linear": LinearTranslation,
    "silu": SiluMulTranslation,
    "silu_mul": SiluMulTranslation,
    "silu_and_mul": SiluMulTranslation,
    "swiglu": SiluMulTranslation,
    "activation": SiluMulTranslation,
    "embedding": RowsTranslation,
    "gather_rows": RowsTranslation,
    "argmax": ArgmaxTranslation,
    "gqa_paged": AttentionTranslation,
    "gqa_ragged": AttentionTranslation,
}


class Kind(StrEnum):
    """How a definition came in."""

    OWN = "own"  # exported by kforge, unchanged
    MAPS = "maps"  # onto an operator, and its reference agrees on examples
    SIGNATURE = "signature"  # onto an operator by its signature; its reference could not be asked
    IMPORTED = "imported"  # its reference is an operator now
    NOT = "not"


@dataclass(frozen=True)
class Usable:
    """A solution that is one of kforge's kernels: ``kforge try`` takes its source."""

    name: str
    source: str


@dataclass(frozen=True)
class Placed:
    """One definition, and what stands below it. ``notes``: conversions and omissions, or why it did not come in."""

    definition: Definition
    kind: Kind
    problem: Problem | None = None
    notes: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()
    refused: tuple[str, ...] = ()  # why a workload did not come in
    solutions: tuple[Usable, ...] = ()
    others: int = 0  # solutions in languages that kforge does not build, or against other interfaces
    traces: int = 0


@dataclass(frozen=True)
class Adopted:
    """A reference that is an operator now. ``axis``: the definition's var axis, "" without; ``only``: its one length
    where the operator is not open in it, else 0."""

    problem: Problem
    axis: str = ""
    only: int = 0


Adopt = Callable[[Definition, Sequence[schema.Trace]], Adopted | str]  # str: why it cannot be


@dataclass(frozen=True)
class Imported:
    placed: tuple[Placed, ...]
    broken: tuple[Broken, ...] = ()
    orphans: tuple[str, ...] = ()  # definitions that workloads, solutions or traces name and nobody defines

    def of(self, kind: Kind) -> tuple[Placed, ...]:
        return tuple(p for p in self.placed if p.kind is kind)


def bring_in(dataset: Dataset, adopt: Adopt | None = None, say: Callable[[str], None] = lambda what: None) -> Imported:
    """Everything of a dataset; ``say`` hears which definition is at work, each of which takes seconds.

    Raises KforgeError when the sandbox, which references run in, does not work here.
    """
    if any(d.op_type in RULES for d in dataset.definitions):
        describe()
    placed = []
    for number, definition in enumerate(dataset.definitions, 1):
        say(f"definition {number} of {len(dataset.definitions)}: {one_line(definition.name)}")
        placed.append(_brought(definition, dataset, adopt))
    defined = {d.name for d in dataset.definitions}
    named = [*(t.definition for t in (*dataset.workloads, *dataset.traces)), *(s.definition for s in dataset.solutions)]
    return Imported(tuple(placed), dataset.broken, tuple(dict.fromkeys(n for n in named if n not in defined)))


def _brought(definition: Definition, dataset: Dataset, adopt: Adopt | None) -> Placed:
    """A stranger wrote it: whatever goes wrong with it is a reason why this one does not come in."""
    try:
        translation = _translated(definition)
        found = agreement.check(translation) if isinstance(translation, Foreign) else None
        return _placed(definition, translation, found, dataset, adopt)
    except KforgeError as error:
        reason = str(error)
    except MemoryError:
        reason = "it takes more memory than there is"
    except Exception as error:
        reason = f"it cannot be read as an operator: {type(error).__name__}: {error}"
    return _with_company(Placed(definition, Kind.NOT, None, (one_line(reason),)), None, dataset)


def _translated(definition: Definition) -> Translation | str:
    if (mine := own(definition)) is not None:
        return mine
    rule = RULES.get(definition.op_type)
    return rule.match(definition) if rule else f"kforge has no operator of the type {definition.op_type}"


def _placed(
    definition: Definition,
    translation: Translation | str,
    found: agreement.Found | None,
    dataset: Dataset,
    adopt: Adopt | None,
) -> Placed:
    if isinstance(translation, Translation) and found is None:
        return _with_company(Placed(definition, Kind.OWN, translation.problem), translation, dataset)
    if found is not None and found.translation is not None:
        kind = Kind.MAPS if found.checked else Kind.SIGNATURE
        notes = (*found.translation.differences, *([f"not compared: {found.reason}"] if found.reason else ()))
        made = Placed(definition, kind, found.translation.problem, notes)
        return _with_company(made, found.translation, dataset)
    reason = translation if isinstance(translation, str) else found.reason if found else ""
    adopted = adopt(definition, dataset.workloads_of(definition.name)) if adopt is not None else ""
    if isinstance(adopted, Adopted):
        made = Placed(definition, Kind.IMPORTED, adopted.problem, (reason, _ADOPTED))
        translation = AdoptedTranslation(definition, adopted.problem, adopted.axis, adopted.only)
        return _with_company(made, translation, dataset)
    notes = (reason, f"its reference is no operator either: {adopted}") if adopted else (reason,)
    return _with_company(Placed(definition, Kind.NOT, None, notes), None, dataset)


@dataclass(frozen=True)
class AdoptedTranslation(Translation):
    """Of a reference that became an operator."""

    axis: str
    only: int

    @property
    def differences(self) -> tuple[str, ...]:
        return ()

    def axes(self, workload: schema.Workload, tables: object) -> dict[str, int]:
        if not self.axis:
            return {"B": 1}
        length = workload.axes[self.axis]
        if self.only and length != self.only:
            raise ValueError(f"workload {workload.uuid}: the operator is for {self.axis}={self.only} alone")
        return {"B": 1 if self.only else length}


def _with_company(placed: Placed, translation: Translation | None, dataset: Dataset) -> Placed:
    """With its workloads, solutions and traces."""
    name = placed.definition.name
    workloads: dict[str, Workload] = {}
    refused: list[str] = []
    for trace in dataset.workloads_of(name) if translation else ():
        try:
            made = translation.workload(trace.workload, _tables(trace.workload, dataset)) if translation else None
        except (KforgeError, ValueError, KeyError, TypeError, ArithmeticError, MemoryError) as error:
            refused.append(str(error) or type(error).__name__)
            continue
        if made is not None:
            workloads.setdefault(made.key, made)
    solutions = dataset.solutions_of(name)
    usable = [Usable(s.name, s.entry.content) for s in solutions if placed.problem is not None and is_kernel(s)]
    return Placed(
        placed.definition,
        placed.kind,
        placed.problem,
        placed.notes,
        tuple(workloads.values()),
        tuple(dict.fromkeys(refused)),
        tuple(usable),
        len(solutions) - len(usable),
        len(dataset.traces_of(name)),
    )


def _tables(workload: schema.Workload, dataset: Dataset) -> Callable:
    def stored(name: str) -> object:
        source = workload.inputs.get(name)
        return dataset.tensor(source) if source is not None else None

    return stored


def is_kernel(solution: Solution) -> bool:
    """Whether a solution is one C++ file against kforge's own interface, its headers aside."""
    others = [s for s in solution.sources if s is not solution.entry]
    headers = all(PurePosixPath(s.path).parts[0] == _HEADERS for s in others)
    return solution.spec.language == "cpp" and solution.function == ENTRY and headers


def told(problem: Problem, workload: Workload | None = None) -> str:
    """The axes as ``kforge try --axes`` takes them."""
    pairs: Sequence[tuple[str, object]] = (*problem.static, *(workload.dynamic if workload else ()))
    return ",".join(f"{k}={v}" for k, v in pairs)
