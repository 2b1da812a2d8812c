"""Indices as affine functions of loop variables, and what RESHAPE does to them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kforge.operators.graph import AXIS, Extent, Shape


class Split(Exception):
    """A loop must be split, its inner part running over ``inner``, before an index of ``value`` can be written."""

    def __init__(self, loop: str, inner: int, value: str) -> None:
        super().__init__(loop, inner, value)
        self.value = value
        self.loop = loop
        self.inner = inner


class Opaque(Exception):
    """No split makes the index affine: ``value`` must lie in memory to be read otherwise."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


@dataclass(frozen=True)
class Index:
    """``constant`` + the sum of coefficient times loop; coefficients are positive, loops count from 0."""

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()  # sorted by loop

    @classmethod
    def of(cls, constant: int, terms: Mapping[str, int]) -> Index:
        return cls(constant, tuple(sorted((loop, c) for loop, c in terms.items() if c)))

    def __add__(self, other: Index) -> Index:
        terms = dict(self.terms)
        for loop, c in other.terms:
            terms[loop] = terms.get(loop, 0) + c
        return Index.of(self.constant + other.constant, terms)

    def times(self, factor: int) -> Index:
        return Index.of(self.constant * factor, {loop: c * factor for loop, c in self.terms})

    def plus(self, constant: int) -> Index:
        return Index(self.constant + constant, self.terms)


ZERO = Index()
Indices = tuple[Index, ...]
Extents = Mapping[str, Extent]  # of loops


def aligned(index: Indices, out: Shape, shape: Shape) -> Indices:
    """Where an operand of ``shape`` is read that was broadcast to ``out``."""
    return tuple(ZERO if extent == 1 else index[len(out) - len(shape) + i] for i, extent in enumerate(shape))


def reshaped(index: Indices, out: Shape, shape: Shape, loops: Extents, value: str) -> Indices:
    """Where ``value`` of ``shape`` is read for an index of its reshape to ``out``. Raises Split or Opaque."""
    made = [ZERO] * len(shape)
    for inside, outside in groups(shape, out):
        if len(inside) == len(outside) == 1:
            made[inside[0]] = index[outside[0]]
            continue
        flat, stride = ZERO, 1
        for dim in reversed(outside):
            flat = flat + index[dim].times(stride)
            stride *= int(out[dim])
        for dim, digit in zip(inside, _digits(flat, [int(shape[dim]) for dim in inside], loops, value), strict=True):
            made[dim] = digit
    return tuple(made)


def groups(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions of two shapes of equally many elements that hold equally many; without ones."""
    left, right = ([i for i, extent in enumerate(shape) if extent != 1] for shape in (a, b))
    found = []
    while left or right:
        one, other = [left.pop(0)], [right.pop(0)]
        if AXIS not in (a[one[0]], b[other[0]]):
            while (n := _count(a, one)) != (m := _count(b, other)):
                if n < m:
                    one.append(left.pop(0))
                else:
                    other.append(right.pop(0))
        found.append((one, other))
    return found


def _count(shape: Shape, dims: Sequence[int]) -> int:
    return math.prod(int(shape[dim]) for dim in dims)


def _digits(flat: Index, extents: Sequence[int], loops: Extents, value: str) -> list[Index]:
    """``flat`` as digits, the last of ``extents`` counting fastest."""
    found = []
    stride = math.prod(extents)
    for extent in extents[:-1]:
        stride //= extent
        high = {loop: c // stride for loop, c in flat.terms if c % stride == 0}
        low = {loop: c for loop, c in flat.terms if c % stride}
        constant = flat.constant % stride
        if constant + sum(c * (_extent(loops, loop, value) - 1) for loop, c in low.items()) >= stride:
            for loop, c in low.items():
                n = _extent(loops, loop, value)
                if c < stride and stride % c == 0 and c * n > stride and n % (stride // c) == 0:
                    raise Split(loop, stride // c, value)
            raise Opaque(value)
        found.append(Index.of(flat.constant // stride, high))
        flat = Index.of(constant, low)
    return [*found, flat]


def _extent(loops: Extents, loop: str, value: str) -> int:
    extent = loops[loop]
    if not isinstance(extent, int):
        raise Opaque(value)
    return extent
