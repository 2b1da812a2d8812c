"""Which kernel serves a call, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from kforge.core.image import Image
from kforge.core.kernel import Answer, Step, Tier
from kforge.core.target import Target
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem
from kforge.engine.kernel_set import OWN, ChosenKernel, DefaultKernels, TunedKernels
from kforge.registry.lookup import Asker
from kforge.registry.snapshot import Snapshot
from kforge.registry.store import Store

_REMEMBERED = 4096  # answers


@dataclass(frozen=True)
class Serving:
    """The kernel of a call. ``tier`` and ``trace`` are the registry's look-up; ``promised``: measured on this machine
    at this bucket and better than the default."""

    kernel: str  # the candidate's hash
    template: str
    numerics: NumericsClass
    tier: Tier
    promised: bool
    stale: tuple[str, ...]
    trace: tuple[Step, ...]
    image: Image

    @property
    def text(self) -> str:
        why = self.trace[-1].reason if self.trace else "the default was asked for"
        return f"kernel {self.kernel} ({self.template}), {self.tier}: {why}"


class Chooser:
    """The registry as it was when this was made. What came from elsewhere is not called in this process."""

    def __init__(self, target: Target, snapshot: Snapshot, store: Store, tuned: bool) -> None:
        self.target = target
        self._tuned = tuned
        self._snapshot = snapshot
        self._default = DefaultKernels(target)
        self._served = TunedKernels(snapshot, store, self._default)
        self._remembered = lru_cache(_REMEMBERED)(self._choose)  # the snapshot never changes

    def rows(self, weight: Problem) -> int:
        return self._served.rows(weight) if self._tuned else self._default.rows(weight)

    @cached_property
    def _asker(self) -> Asker:
        from kforge.registry.ask import asker

        return asker(self.target)

    def choose(self, problem: Problem, axes: Mapping[str, int]) -> Serving:
        """Raises KforgeError where neither the registry nor the shipped templates have a kernel."""
        return self._remembered(problem, tuple(axes.items()))

    def _choose(self, problem: Problem, point: tuple[tuple[str, int], ...]) -> Serving:
        axes = dict(point)
        if not self._tuned:
            return _default(self._default.choose(problem, axes), ())
        from kforge.operators import get
        from kforge.registry.lookup import lookup

        answer = lookup(self._snapshot, problem, axes, self._asker, get(problem.operator).bucket)
        if answer.kernel is None:
            return _default(self._default.choose(problem, axes), answer.trace)
        if reason := _refusal(answer):
            step = Step(Tier.DEFAULT, answer.kernel.candidate_hash, False, reason)
            return _default(self._default.choose(problem, axes), (*answer.trace, step))
        chosen = self._served.choose(problem, axes)
        return Serving(chosen.candidate_hash, chosen.template, chosen.numerics, answer.tier, answer.promised,
                       answer.stale, answer.trace, chosen.image)


def _refusal(answer: Answer) -> str:
    """Why a kernel that the registry serves is not called here; "" when it is."""
    kernel = answer.kernel
    if kernel is None or kernel.numerics is not NumericsClass.EXACT:
        return "it is of class relaxed: the default serves"
    if kernel.proposer not in OWN:
        return f"{kernel.proposer} proposed it, and what comes from elsewhere runs in a process of its own, as the " \
               "engine has it: the default serves here"
    return ""


def _default(chosen: ChosenKernel, trace: tuple[Step, ...]) -> Serving:
    return Serving(chosen.candidate_hash, chosen.template, chosen.numerics, Tier.DEFAULT, False, (), trace,
                   chosen.image)
