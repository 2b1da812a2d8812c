"""Loops of a region: split where an index asks for it, joined where memory allows, one of them along vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kforge.backends.generic.indices import Extents, Index, Indices, Opaque, Split
from kforge.backends.generic.memory import UNIT, Address
from kforge.backends.generic.nodes import Node
from kforge.operators.graph import Extent, Shape

T = TypeVar("T")
_FEW = 4  # a loop so short makes poor vectors


@dataclass(frozen=True)
class Loop:
    """``extent``: a number, or C++."""

    name: str
    extent: Extent

    @property
    def text(self) -> str:
        return str(self.extent)


@dataclass(frozen=True)
class Space:
    """The loops over a shape and the index that they form. ``dims``: the loops of each dimension, outermost first."""

    index: Indices
    dims: tuple[tuple[Loop, ...], ...]

    @property
    def extents(self) -> Extents:
        return {loop.name: loop.extent for loops in self.dims for loop in loops}

    def of(self, dims: Iterable[int]) -> tuple[Loop, ...]:
        return tuple(loop for dim in dims for loop in self.dims[dim])


def space(shape: Shape, splits: dict[str, int], prefix: str = "i") -> Space:
    dims = [() if extent == 1 else _split(Loop(f"{prefix}{dim}", extent), splits) for dim, extent in enumerate(shape)]
    index = []
    for loops in dims:
        at, stride = Index(), 1
        for loop in reversed(loops):
            at = at + Index.of(0, {loop.name: stride})
            stride *= int(loop.extent) if isinstance(loop.extent, int) else 1  # only the outermost can be unknown
        index.append(at)
    return Space(tuple(index), tuple(dims))


def _split(loop: Loop, splits: dict[str, int]) -> tuple[Loop, ...]:
    inner = splits.get(loop.name)
    if inner is None or not isinstance(loop.extent, int):
        return (loop,)
    high, low = Loop(f"{loop.name}h", loop.extent // inner), Loop(f"{loop.name}l", inner)
    return (*_split(high, splits), *_split(low, splits))


def with_splits(make: Callable[[dict[str, int]], T], whole: tuple[str, ...] = ()) -> T:
    """What ``make`` makes once loops are split that have to be. Raises Opaque where one of ``whole`` would have to."""
    splits: dict[str, int] = {}
    while True:
        try:
            return make(splits)
        except Split as split:
            if split.loop in whole:
                raise Opaque(split.value) from None
            splits[split.loop] = split.inner


def joined(runs: Sequence[Sequence[Loop]], addresses: Iterable[Address]) -> tuple[list[list[Loop]], frozenset[str]]:
    """The loops of each run (outermost first) with neighbours made one wherever all addresses allow it, and the names
    of the loops that are gone: the inner one of two keeps its name."""
    addresses = list(addresses)
    gone: set[str] = set()
    made = []
    for run in runs:
        kept: list[Loop] = []
        for loop in run:
            while (
                kept and isinstance(loop.extent, int) and all(_continues(at, kept[-1].name, loop) for at in addresses)
            ):
                outer = kept.pop()
                gone.add(outer.name)
                loop = replace(loop, extent=_times(outer.extent, loop.extent))
            kept.append(loop)
        made.append(kept)
    return made, frozenset(gone)


def _continues(at: Address, outer: str, inner: Loop) -> bool:
    assert isinstance(inner.extent, int)
    return at.along(outer) == tuple((symbol, c * inner.extent) for symbol, c in at.along(inner.name))


def _times(outer: Extent, inner: Extent) -> Extent:
    return outer * inner if isinstance(outer, int) and isinstance(inner, int) else f"{outer}*{inner}"


def without(at: Address, gone: frozenset[str]) -> Address:
    return Address(tuple(term for term in at.terms if term[0] not in gone))


def rewritten(nodes: Iterable[Node], gone: frozenset[str]) -> dict[Node, Node]:
    """Nodes, and all below them, for loops of which some are gone."""
    made: dict[Node, Node] = {}
    for target in nodes:
        for node in target.below():
            if node not in made:
                address = None if node.address is None else without(node.address, gone)
                made[node] = replace(
                    node, args=tuple(made[arg] for arg in node.args), loops=node.loops - gone, address=address
                )
    return made


def along(loops: Sequence[Loop], addresses: Iterable[Address]) -> Loop:
    """The loop for vectors to run along: the one with the fewest addresses that are neither equal nor adjacent from
    lane to lane; of equals the innermost."""
    addresses = list(addresses)

    def cost(item: tuple[int, Loop]) -> tuple[bool, int, int]:
        place, loop = item
        apart = sum(at.along(loop.name) not in ((), ((UNIT, 1),)) for at in addresses)
        return isinstance(loop.extent, int) and loop.extent <= _FEW, apart, -place

    return min(enumerate(loops), key=cost)[1]
