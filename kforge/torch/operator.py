"""Problems as custom operators of torch, registered on first use in the namespace ``kforge``.

An operator has a rule for fake tensors, so ``torch.compile`` and ``torch.export`` can trace through it; it has no
gradient. Which kernel runs is decided at each call by its axes: an operator traced once serves every bucket.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from kforge.core.errors import KforgeError
from kforge.core.paths import store_path
from kforge.core.workload import Attr, Problem, stable_hash
from kforge.torch import packing
from kforge.torch.calling import Caller, Launch
from kforge.torch.packing import PackedWeight
from kforge.torch.running import workers
from kforge.torch.serving import Chooser, Serving
from kforge.torch.signature import described

__all__ = ["Op", "Serving", "op"]

NAMESPACE = "kforge"
_PACKED = "u8"  # the element type that only packed weights have


def op(operator: str, /, *, kernels: str = "tuned", threads: int | None = None, **static: Attr) -> Op:
    """The operator with these static attributes (docs/architecture.md), such as ``op("linear", K=576, N=960,
    weight="q4_0")``; what is usual may be left out, and ``rows``: the layout is what the registry has settled.

    ``kernels``: "tuned", what the registry promoted, the default where it has nothing; or "default". ``threads``: all
    cores where it is not said. The same question gives the same operator, with the registry as it was at the first.
    Raises KforgeError that names what is unknown, missing or impossible.
    """
    if kernels not in ("tuned", "default"):
        raise KforgeError(f"kernels={kernels!r}: there are tuned and default")
    return _made(operator, kernels, threads, tuple(sorted(static.items())))


class Op:
    """Make them with ``op``. Calling one takes tensors by the operator's names, in its order (``schema``)."""

    def __init__(self, problem: Problem, chooser: Chooser, threads: int, kernels: str) -> None:
        self.problem = problem
        self._chooser = chooser
        self._workers = workers(threads)
        name = f"{problem.operator}_{stable_hash([problem.key, kernels, threads], 12)}"
        self._caller = Caller(NAMESPACE, described(problem, name), self._launch)
        packed = [i for i, t in enumerate(self._caller.arguments) if t["dtype"] == _PACKED]
        self._packed_at = packed[0] if packed else -1
        self._packed: str = self._caller.arguments[packed[0]]["name"] if packed else ""
        self.weight = packing.weight_key(problem) if packed else ""
        self.overload = self._caller.op  # what torch knows it as

    @property
    def schema(self) -> str:
        return f"{NAMESPACE}::{self._caller.name}{self._caller.schema}"

    def __call__(self, *tensors: Any, **more: Any) -> Any:
        """Tensors in launch order, a packed weight as ``pack`` gave it; explicit axes and scalars behind them, or by
        name.

        Raises KforgeError for a weight that was packed for another layout, ValueError for shapes, types and indices
        that are not the operator's.
        """
        if not self._packed:
            return self.overload(*tensors, **more)
        given = list(tensors)
        if self._packed_at < len(given):
            given[self._packed_at] = self._bytes(given[self._packed_at])
        elif self._packed in more:
            more = {**more, self._packed: self._bytes(more[self._packed])}
        return self.overload(*given, **more)

    def pack(self, weight: torch.Tensor, scales: torch.Tensor | None = None) -> PackedWeight:
        """A weight in the layout that this operator's kernels read; see ``kforge.torch.packing.pack``."""
        return packing.pack(self.problem, weight, scales)

    def serving(self, **axes: int) -> Serving:
        """Which kernel serves a call at these dynamic axes, and why."""
        wanted = self._caller.dynamic
        if missing := [name for name in wanted if name not in axes]:
            raise KforgeError(f"{self.problem.operator} lacks {', '.join(f'{n}=...' for n in missing)}")
        if unknown := [name for name in axes if name not in wanted]:
            raise KforgeError(f"{self.problem.operator} has no dynamic axis {', '.join(unknown)}; it has "
                              f"{', '.join(wanted)}")
        return self._chooser.choose(self.problem, axes)

    def __repr__(self) -> str:
        return f"kforge.torch.Op({self.problem.key})"

    def _bytes(self, weight: object) -> torch.Tensor:
        if not isinstance(weight, PackedWeight):
            raise KforgeError(f"{self._packed} of {self.problem.operator} must be packed first: use pack")
        if weight.weight != self.weight:
            raise KforgeError(f"the weight was packed as {weight.weight}; {self.problem.operator} reads {self.weight}")
        return weight.data

    def _launch(self, launch: Launch) -> None:
        serving = self._chooser.choose(self.problem, launch.axes)
        self._workers.launch(serving.image, serving.kernel, launch.tensors, launch.ordered, launch.scalars)


@functools.cache
def _made(operator: str, kernels: str, threads: int | None, static: tuple[tuple[str, Attr], ...]) -> Op:
    from kforge.operators import get, names
    from kforge.operators.axes import USUAL, workload_of

    if operator not in names():
        raise KforgeError(f"there is no operator {operator!r} for torch; there are {', '.join(names())}")
    chooser = _chooser(kernels)
    dynamic = dict.fromkeys(get(operator).dynamic_axes, 1)
    given: Mapping[str, Attr] = dict(static)
    if odd := [name for name in given if name in dynamic]:
        raise KforgeError(f"{odd[0]} is a dynamic axis of {operator}: each call's tensors say it")
    workload = workload_of(operator, {**USUAL.get(operator, {}), **given, **dynamic}, chooser.rows)
    return _registered(workload.problem, kernels, threads or chooser.target.cores)


@functools.cache
def _registered(problem: Problem, kernels: str, threads: int) -> Op:
    """Once a problem, in whichever words it was asked for: torch takes a name once."""
    return Op(problem, _chooser(kernels), threads, kernels)


@functools.cache
def _chooser(kernels: str) -> Chooser:
    from kforge.registry.ask import open_snapshot
    from kforge.registry.store import Store
    from kforge.targets.files import load_target

    return Chooser(load_target("host"), open_snapshot(), Store(store_path()), kernels == "tuned")
