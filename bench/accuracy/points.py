"""A kernel set at other points of the templates' spaces than their defaults: what a tuned set may turn out to be."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from kforge.backends import templates
from kforge.backends.cpp.admission import admit
from kforge.backends.cpp.build import build
from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.errors import KforgeError
from kforge.core.image import Image
from kforge.core.kernel import Tier
from kforge.core.target import Target
from kforge.core.trial import Artifact, NumericsClass
from kforge.core.workload import Problem, stable_hash
from kforge.engine.kernel_set import ChosenKernel


@dataclass(frozen=True)
class _Question:
    problem: Problem
    single: bool  # one token or row: decoding alone gets a kernel of its own, as tuned sets have it


class RandomPoints:
    """For each problem any exact template that serves it, at a legal point; the same for the same seed."""

    from_elsewhere = False

    def __init__(self, target: Target, seed: int, rows: int = DEFAULT_ROWS) -> None:
        self.name = f"random {seed}"
        self.target = target
        self._seed, self._rows = seed, rows
        self._made: dict[_Question, ChosenKernel] = {}

    def rows(self, weight: Problem) -> int:
        """At least 32 for gate and up, which alternate in blocks of 16."""
        return max(self._rows, 32) if dict(weight.static).get("epilogue") == "silu_gate" else self._rows

    def choose(self, problem: Problem, dynamic: Mapping[str, int]) -> ChosenKernel:
        question = _Question(problem, dynamic.get("M", dynamic.get("T", 1)) == 1)
        if question not in self._made:
            self._made[question] = self._make(question)
        return self._made[question]

    def _make(self, question: _Question) -> ChosenKernel:
        problem = question.problem
        rng = random.Random(stable_hash([self._seed, problem.key, question.single]))
        fitting = [t for t in templates.load(problem.operator)
                   if t.numerics is NumericsClass.EXACT and t.applies(problem, self.target) is None]
        template = rng.choice(fitting)
        candidate = template.render(problem, self.target, rng.choice(template.space(problem, self.target)))
        made = build(candidate, self.target)
        image = admit(made.data) if isinstance(made, Artifact) else made
        if not isinstance(image, Image):
            raise KforgeError(f"{template.path} at {dict(candidate.params)} does not build: {image.reason}")
        return ChosenKernel(image, candidate.hash, template.path, candidate.numerics, Tier.EXACT)
