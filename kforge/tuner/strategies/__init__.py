"""Search strategies: plug-ins that name the next point of a finite space, replayable on recorded ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge.core.errors import KforgeError

if TYPE_CHECKING:
    from kforge.tuner.strategies.base import Strategy
    from kforge.tuner.strategies.space import DiscreteSpace

NAMES = ("guided", "tpe", "random")
DEFAULT = "guided"


def make(name: str, space: DiscreteSpace, seed: int) -> Strategy:
    """The strategy of this name on a space. Raises KforgeError for an unknown one."""
    check(name)
    if name == "tpe":
        from kforge.tuner.strategies.tpe import TpeSearch

        return TpeSearch(space, seed)
    if name == "random":
        from kforge.tuner.strategies.sampling import RandomSearch

        return RandomSearch(space, seed)
    from kforge.tuner.strategies.guided import GuidedSearch

    return GuidedSearch(space, seed)


def check(name: str) -> None:
    """Raises KforgeError for a name that is no strategy's."""
    if name not in NAMES:
        raise KforgeError(f"there is no search strategy {name}; choose one of {', '.join(NAMES)}")
