"""What serves a model's calls after a run, so that nobody takes the shipped defaults for tuned kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.kernel import KernelState
from kforge.core.target import Target
from kforge.core.words import counted
from kforge.core.workload import Workload
from kforge.registry.ask import ask
from kforge.registry.snapshot import Snapshot


@dataclass(frozen=True)
class Serving:
    """``kernels``: of the registry, that serve the model's calls in all, with those that the run promoted; ``relaid``:
    weights that lie in another layout than the defaults have. ``engine``: whether there is one that calls them, which
    there is not for an imported operator: the judge's word promotes its kernels."""

    promoted: int
    kernels: int
    relaid: int = 0
    engine: bool = True

    @property
    def defaults_only(self) -> bool:
        """Whether default and tuned are the same kernels, so that no ratio of the two says anything."""
        return not self.kernels and not self.relaid

    @property
    def text(self) -> str:
        """One line."""
        if self.kernels:
            own = f"{counted(self.promoted, 'kernel')} promoted" if self.promoted else "None was promoted"
            alone = "" if self.engine or not self.promoted else (
                ", on the judge's word alone, since no engine calls an imported operator")
            return f"{own} by this run{alone}; {self.kernels} {'serves' if self.kernels == 1 else 'serve'} in all."
        if not self.engine:
            return "None was promoted: the generated default serves."
        if self.relaid:
            weights = counted(self.relaid, "weight")
            return f"None was promoted: the shipped defaults serve, {weights} in a layout chosen here."
        return "None was promoted: the shipped defaults serve, so default and tuned are the same kernels."


def serving(
    before: Snapshot, now: Snapshot, run: str, calls: Iterable[Workload], target: Target, engine: bool = True
) -> Serving:
    """``before``: the registry when the run began, or when it was resumed."""
    already = {k.id for k in before.kernels if k.state is KernelState.PROMOTED}
    own = [k for k in now.kernels if k.target_identity == target.identity and k.state is KernelState.PROMOTED]
    used, relaid = set(), set()
    for workload in calls:
        problem = workload.problem.without_layout
        answer = ask(now, problem.operator, {**dict(problem.static), **workload.axes}, target)
        if answer.kernel is not None:
            used.add(answer.kernel.id)
        if now.rows(problem, target.identity) != DEFAULT_ROWS:
            relaid.add(problem)
    return Serving(sum(k.run == run or k.id not in already for k in own), len(used), len(relaid), engine)
