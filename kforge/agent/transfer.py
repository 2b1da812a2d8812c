"""A kernel of the same operator that another target or backend has: what was found there may be worth carrying over."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kforge.agent import figures
from kforge.backends import templates
from kforge.backends.features import KNOWN, lanes
from kforge.backends.templates import Template, TemplateError
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.target import Target
from kforge.core.workload import Attr, Problem, Workload
from kforge.operators import get
from kforge.registry.database import Registry
from kforge.targets.files import list_targets, load_target
from kforge.targets.roofline import time_limit
from kforge.tuner.proposals import Situation
from kforge.tuner.report_names import short_template

MOST_SOURCE = 4_000  # characters
_MOST_MEASURED = 4
_BACKEND = "cpp"
_GOOD = (KernelState.ACCEPTED, KernelState.PROMOTED)
_log = logging.getLogger("kforge.agent")


@dataclass(frozen=True)
class Elsewhere:
    """At one shape on the other target: seconds of a call, and their share of that target's limit."""

    bucket: str
    seconds: float
    reached: float


@dataclass(frozen=True)
class Transfer:
    """``static``: of the problem that it served. ``measured``: what came nearest to the limit first; none for a
    template that was only written for such a target. ``source``: its beginning, "" where the template competes here."""

    template: str
    backend: str
    target: Target
    static: tuple[tuple[str, Attr], ...]
    params: tuple[tuple[str, Attr], ...]
    measured: tuple[Elsewhere, ...]
    source: str
    cut: bool


@dataclass(frozen=True)
class Difference:
    what: str
    here: str
    there: str


class Abroad:
    """All that the registry and the shipped templates know of other targets and backends."""

    def __init__(self, registry: Registry):
        """As it is now. Raises KforgeError where the registry cannot be read."""
        self._registry = registry
        self._kernels = registry.snapshot().kernels
        self._targets = {target.identity: target for target in known_targets()}

    def best(self, situation: Situation) -> Transfer | None:
        """The kernel that comes nearest to its target's limit; without one a template that this target cannot use."""
        found = _grouped(self._kernels, situation, self._targets)
        for group in sorted(found, key=lambda group: (-group[0].reached, group[0].kernel.id)):
            try:
                return self._measured(group, situation)
            except KforgeError as error:  # a file is gone or damaged: the next one will do
                _log.warning("a kernel of another target is not shown: %s", error)
        return _unmeasured(situation, self._targets.values())

    def _measured(self, group: Sequence[_Reached], situation: Situation) -> Transfer:
        """Raises KforgeError."""
        kernel = group[0].kernel
        here = any(t.hash == kernel.template_hash for t in situation.templates)
        text = "" if here else _template_text(kernel) or self._registry.store.get(kernel.source_hash).decode()
        shown = tuple(Elsewhere(one.kernel.bucket_key, one.kernel.seconds, one.reached) for one in group)
        return Transfer(short_template(kernel.template), kernel.backend, self._targets[kernel.target_identity],
                        kernel.problem.static, kernel.params, shown[:_MOST_MEASURED], *_beginning(text))


@dataclass(frozen=True)
class _Reached:
    kernel: KernelRecord
    reached: float


def known_targets() -> list[Target]:
    """Every target that a file describes, but this machine: it is never another one."""
    found = []
    for name in list_targets():
        if name != "host":
            try:
                found.append(load_target(name))
            except KforgeError as error:  # kforge target list names it
                _log.warning("%s", error)
    return found


def differences(here: Target, there: Target) -> tuple[Difference, ...]:
    """Rows in which two targets differ."""
    mine, other = _described(here), _described(there)
    rows = [Difference(what, mine.get(what, "-"), other.get(what, "-"))
            for what in dict.fromkeys([*mine, *other])]
    pairs = ((here, there), (there, here)) if here.arch == there.arch else ()
    only = [", ".join(sorted((set(a.features) - set(b.features)) & KNOWN)) or "none" for a, b in pairs]
    features = [Difference("features that the other lacks", *only)] if only else []
    return tuple(row for row in (*rows, *features) if row.here != row.there)


def _described(target: Target) -> dict[str, str]:
    rows = {"processor": f"{target.vendor} {target.model}", "architecture": target.arch, "cores": str(target.cores),
            "widest vectors": f"{32 * lanes(target.features)} bits"}
    for cache in target.caches:
        shared = f", shared by {cache.shared_by} cores" if cache.shared_by > 1 else ""
        rows[f"L{cache.level}"] = f"{figures.size(cache.bytes)}{shared}"
    if target.bandwidth:
        rows["memory bandwidth a core"] = f"{figures.sig(target.best_bandwidth() / target.cores / 1e9)} GB/s"
    for name, peak in target.peaks:
        rows[f"{name} a core"] = f"{figures.sig(peak.value / target.cores / 1e9)} G/s"
    return rows


def _grouped(kernels: Iterable[KernelRecord], situation: Situation,
             targets: Mapping[str, Target]) -> list[list[_Reached]]:
    """Kernels of one template on one target together, what reached most first."""
    groups: dict[tuple[str, str], list[_Reached]] = {}
    for kernel in kernels:
        target = targets.get(kernel.target_identity)
        if target is not None and _elsewhere(kernel, situation) and (reached := _reached(kernel, target)) is not None:
            groups.setdefault((kernel.template_hash, kernel.target_identity), []).append(_Reached(kernel, reached))
    return [sorted(group, key=lambda one: (-one.reached, one.kernel.id)) for group in groups.values()]


def _elsewhere(kernel: KernelRecord, situation: Situation) -> bool:
    """Of another target or backend, for the same kind of problem: formats and styles are equal, sizes need not be."""
    mine = situation.task.problem
    if kernel.problem.operator != mine.operator or kernel.state not in _GOOD or kernel.seconds <= 0:
        return False
    own = kernel.target_identity == situation.target.identity and kernel.backend == _BACKEND
    return not own and _kind(kernel.problem) == _kind(mine)


def _kind(problem: Problem) -> list[tuple[str, Attr]]:
    return [(name, value) for name, value in problem.static if isinstance(value, str)]


def _reached(kernel: KernelRecord, target: Target) -> float | None:
    """Share of the target's limit, all its cores at work; None where that is not known of this bucket."""
    try:
        cost = get(kernel.problem.operator).cost(Workload(kernel.problem, kernel.bucket))
        return time_limit(cost, target).seconds / kernel.seconds
    except (KforgeError, KeyError):  # no figure, or axes that the bucket leaves open
        return None


def _unmeasured(situation: Situation, targets: Iterable[Target]) -> Transfer | None:
    """The most demanding shipped template that does not serve here and does on another target of this kind: without a
    measurement a GPU's kernel says little of a processor."""
    problem, own = situation.task.at(situation.task.rows_choices()[0]), situation.target
    there = sorted((target for target in targets if target.kind == own.kind), key=lambda target: target.name)
    try:
        shipped = sorted(templates.load(problem.operator), key=lambda t: (-t.demand, t.path))
        for template in shipped:
            if template.backend == _BACKEND and template.applies(problem, own) is None:
                continue
            target = next((t for t in there if template.applies(problem, t) is None), None)
            if target is not None:
                return Transfer(short_template(template.path), template.backend, target, problem.static, (), (),
                                *_beginning(_text(template)))
    except (KforgeError, OSError) as error:
        _log.warning("no template of another target is shown: %s", error)
    return None


def _template_text(kernel: KernelRecord) -> str:
    """Of the shipped template that the kernel was rendered from; "" where it is none, or another version."""
    try:
        found = templates.load(kernel.problem.operator)
    except TemplateError:
        return ""
    return next((_text(t) for t in found if t.hash == kernel.template_hash), "")


def _text(template: Template) -> str:
    return (template.root / template.path).read_text(encoding="utf-8")


def _beginning(text: str) -> tuple[str, bool]:
    """Whole lines, at most ``MOST_SOURCE`` characters; whether that is not all."""
    if len(text) <= MOST_SOURCE:
        return text, False
    return text[:MOST_SOURCE].rpartition("\n")[0], True
