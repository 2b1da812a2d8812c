"""Parameters that somebody measured elsewhere: where a search begins, never what is served."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.core.workload import Attr, Problem


@dataclass(frozen=True)
class Seed:
    """One set of parameters and where it was good.

    ``where``: the attributes that a problem must have; those that are not named may be any. ``target_identity``: the
    only target whose searches may begin with it; "" for all, whose spaces decide whether they have such a point.
    ``template``: whose parameters these are; "": any of the backend's that has all of them.
    """

    operator: str
    where: tuple[tuple[str, Attr], ...]
    bucket: tuple[tuple[str, int], ...]  # dynamic axes at which it was found best
    backend: str
    template: str
    params: tuple[tuple[str, Attr], ...]
    target_identity: str
    measured_on: str  # the device, as whoever measured names it
    source: str  # the file's name, and whose format
    seconds: float | None = None  # there, of one call; None where the file does not say
    id: int = 0

    def fits(self, problem: Problem) -> bool:
        """Whether a search of this problem may begin with it."""
        if problem.operator != self.operator:
            return False
        attributes = problem.attributes
        return all(attributes.get(name) == value for name, value in self.where)
