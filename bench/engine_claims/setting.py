"""What all parts share: the model, its packed weights, the kernels, and how much is asked of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kforge.engine.engine import Engine
from kforge.engine.kernel_set import KernelSet
from kforge.engine.weights import Weights
from kforge.models.model import Model

T = TypeVar("T")


class Answered(Protocol):
    """What a run of a part comes to, with what was said."""

    @property
    def texts(self) -> Mapping[Any, list[int]]: ...


A = TypeVar("A", bound=Answered)


@dataclass(frozen=True)
class Setting:
    """``rounds`` counted ones, behind one that is not. ``scale`` cuts numbers of requests, for a first look: figures
    that are kept are of 1. ``say`` shows how far the bench is."""

    model: Model
    kernels: KernelSet
    weights: Weights
    threads: int
    rounds: int
    scale: float
    say: Callable[[str], None]
    draft: Model | None = None  # guesses, in place of prompt look-up

    def engine(self, weights: Weights | None = None, **options: Any) -> Engine:
        """An engine of this bench's; the caller closes it. ``options`` are those of ``Engine``."""
        return Engine(self.model, self.kernels, weights=weights or self.weights, threads=self.threads, text=False,
                      **options)

    def count(self, full: int, least: int = 2) -> int:
        """So many of what a whole run takes ``full`` of."""
        return max(round(full * self.scale), least)

    def context(self, wanted: int) -> int:
        """``wanted`` positions, or as many as the model has."""
        return min(wanted, self.model.config.context_length)

    def turns(self, sides: Sequence[T]) -> list[tuple[int, T]]:
        """(round, side) in the order in which to measure: every side once a round, forwards and backwards in turn.
        Round 0 is not to be counted: programs are built in it, and memory is touched for the first time."""
        out = []
        for number in range(self.rounds + 1):
            order = list(sides)[:: 1 if number % 2 else -1]
            out += [(number, side) for side in order]
        return out

    def answered(self, part: str, sides: Mapping[T, str], run: Callable[[int, T], A], what: str) -> dict[T, list[A]]:
        """What ``run`` (round, side) comes to in the rounds that count, by side; ``sides``: with the words for each.
        Ends the bench where ``what`` changed an answer, which depends on the round alone."""
        seen: dict[T, list[A]] = {side: [] for side in sides}
        texts: dict[int, Mapping[Any, list[int]]] = {}
        for number, side in self.turns(tuple(sides)):
            self.say(f"{part}: round {number} of {self.rounds}, {sides[side]}")
            found = run(number, side)
            if texts.setdefault(number, found.texts) != found.texts:
                raise SystemExit(f"{what} changed an answer: run bench/exactness.py")
            if number:
                seen[side].append(found)
        return seen
