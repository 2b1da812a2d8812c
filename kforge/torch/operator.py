"""Problems as custom operators of torch, registered on first use in the namespace ``kforge``.

An operator has a rule for fake tensors, so ``torch.compile`` and ``torch.export`` can trace through it; it has no
gradient. Which kernel runs is decided at each call by its axes: an operator traced once serves every bucket.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kforge.core.errors import KforgeError
from kforge.core.paths import store_path
from kforge.core.target import Target
from kforge.core.workload import Attr, Problem, stable_hash
from kforge.operators.base import Role
from kforge.torch import packing
from kforge.torch.indices import check
from kforge.torch.packing import PackedWeight
from kforge.torch.running import DTYPES, array, by_name, placed, workers
from kforge.torch.serving import Chooser, Serving
from kforge.torch.signature import Argument, Signature

__all__ = ["Op", "Serving", "op"]


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
        self.signature = Signature.of(problem)
        self._chooser = chooser
        self._workers = workers(threads)
        self.name = f"{problem.operator}_{stable_hash([problem.key, kernels, threads], 12)}"
        definition = torch.library.custom_op(
            f"kforge::{self.name}", self._run, mutates_args=self.signature.changed, schema=self.signature.schema,
            device_types="cpu",
        )
        definition.register_fake(self._fake)
        self._overload = getattr(torch.ops.kforge, self.name).default
        packed = [t.name for t in self.signature.arguments if t.spec.layout.family == "panel"]
        self._packed = packed[0] if packed else ""
        self._packed_at = [t.name for t in self.signature.arguments].index(self._packed) if packed else -1
        self.weight = packing.weight_key(problem) if packed else ""

    @property
    def schema(self) -> str:
        return f"kforge::{self.name}{self.signature.schema}"

    def __call__(self, *tensors: Any, **more: Any) -> Any:
        """Tensors in launch order, a packed weight as ``pack`` gave it; explicit axes and scalars by name.

        Raises KforgeError for a weight that was packed for another layout, ValueError for shapes, types and indices
        that are not the operator's.
        """
        given = list(tensors)
        if self._packed:
            if self._packed in more:
                more[self._packed] = self._bytes(more[self._packed])
            elif self._packed_at < len(given):
                given[self._packed_at] = self._bytes(given[self._packed_at])
        return self._overload(*given, **more)

    def pack(self, weight: torch.Tensor, scales: torch.Tensor | None = None) -> PackedWeight:
        """A weight in the layout that this operator's kernels read; see ``kforge.torch.packing.pack``."""
        return packing.pack(self.problem, weight, scales)

    def serving(self, **axes: int) -> Serving:
        """Which kernel serves a call at these dynamic axes, and why."""
        wanted = self.signature.dynamic
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

    # -- what torch calls ------------------------------------------------------------------------------------------

    def _run(self, *values: Any, **named: Any) -> Any:
        call = self._parted(values, named)
        tensors = call.tensors
        shapes = [tuple(t.shape) for t in tensors]
        self._require(tensors)
        axes = self.signature.axes(shapes, call.explicit)
        _require_shapes(self.signature.arguments, shapes, axes)
        results = [torch.empty(_shape(r, axes), dtype=DTYPES[r.spec.dtype]) for r in self.signature.results]
        if all(axes[name] > 0 for name in self.signature.dynamic):
            check(self.problem, by_name([t.name for t in self.signature.arguments], tensors), axes)
            self._launch(tensors, results, axes, call.scalars)
        return _returned(results)

    def _launch(
        self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], axes: dict[str, int],
        scalars: Sequence[float],
    ) -> None:
        serving = self._chooser.choose(self.problem, axes)
        used = [placed(t) for t in tensors]
        given, made = iter(used), iter(results)
        launched = [array(next(made if t.role is Role.OUT else given)) for t in self.signature.tensors]
        ordered = [axes[name] for name in self.signature.dynamic]
        self._workers.launch(serving.image, serving.kernel, launched, ordered, scalars)
        for argument, mine, theirs in zip(self.signature.arguments, used, tensors, strict=True):
            if argument.role is Role.INOUT and mine is not theirs:
                theirs.copy_(mine)

    def _fake(self, *values: Any, **named: Any) -> Any:
        call = self._parted(values, named)
        tensors = call.tensors
        self._require(tensors)
        axes = self.signature.axes([t.shape for t in tensors], call.explicit)
        for argument, tensor in zip(self.signature.arguments, tensors, strict=True):
            for i, extent in enumerate(argument.shape):
                torch._check(tensor.shape[i] == extent.of(axes))
        results = [tensors[0].new_empty(_shape(r, axes), dtype=DTYPES[r.spec.dtype]) for r in self.signature.results]
        return _returned(results)

    def _parted(self, values: Sequence[Any], named: dict[str, Any]) -> _Call:
        signature = self.signature
        names = [*(t.name for t in signature.arguments), *signature.explicit, *(name for name, _ in signature.scalars)]
        bound = {**dict(signature.scalars), **dict(zip(names, values, strict=False)), **named}
        ordered = [bound[name] for name in names]
        first, second = len(signature.arguments), len(signature.arguments) + len(signature.explicit)
        return _Call(ordered[:first], ordered[first:second], ordered[second:])

    def _require(self, tensors: Sequence[torch.Tensor]) -> None:
        for argument, tensor in zip(self.signature.arguments, tensors, strict=True):
            wanted = DTYPES[argument.spec.dtype]
            if tensor.dtype is not wanted or tensor.dim() != len(argument.shape):
                raise ValueError(f"{self.problem.operator}: {argument.name} is {tensor.dtype} of {tensor.dim()} axes; "
                                 f"wanted is {wanted} of {len(argument.shape)}")


@dataclass(frozen=True)
class _Call:
    """What a call was given, in the signature's order."""

    tensors: list[torch.Tensor]
    explicit: list[Any]
    scalars: list[float]


def _returned(results: Sequence[torch.Tensor]) -> Any:
    """As a schema of so many results wants them."""
    return None if not results else results[0] if len(results) == 1 else tuple(results)


@functools.cache
def _made(operator: str, kernels: str, threads: int | None, static: tuple[tuple[str, Attr], ...]) -> Op:
    from kforge.operators import get, names
    from kforge.operators.axes import USUAL, workload_of

    if operator not in names():
        raise KforgeError(f"there is no operator {operator!r} for torch; there are {', '.join(names())}")
    chooser = _chooser(kernels)
    dynamic = dict.fromkeys(get(operator).dynamic_axes, 1)
    given = dict(static)
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

    target: Target = load_target("host")
    return Chooser(target, open_snapshot(), Store(store_path()), kernels == "tuned")


def _shape(argument: Argument, axes: dict[str, Any]) -> list[Any]:
    return [extent.of(axes) for extent in argument.shape]


def _require_shapes(arguments: Sequence[Argument], shapes: Sequence[tuple[int, ...]], axes: dict[str, int]) -> None:
    for argument, shape in zip(arguments, shapes, strict=True):
        if list(shape) != (wanted := _shape(argument, axes)):
            raise ValueError(f"{argument.name} has the shape {list(shape)}; wanted is {wanted}")
