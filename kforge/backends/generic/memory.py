"""Where values lie in memory: buffers, strided views of them, and addresses in terms of loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kforge.backends.generic.indices import Indices, groups
from kforge.operators.graph import AXIS, Shape

Stride = int | str  # elements; a text names a stride that the launch tells
UNIT = ""  # the symbol of strides that are numbers


class Place(StrEnum):
    GIVEN = "given"
    OUTPUT = "output"
    SCRATCH = "scratch"


@dataclass(frozen=True)
class View:
    """Elements of a buffer's memory: ``pointer`` is a variable of the kernel, a ``float *``."""

    pointer: str
    place: Place
    shape: Shape
    strides: tuple[Stride, ...]
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """Elements from a pointer: the sum of coefficient times stride times loop (``""``: no loop, the constant part).

    A stride is a symbol or ``UNIT``.
    """

    terms: tuple[tuple[str, str, int], ...]  # (loop, symbol, coefficient), sorted

    def along(self, loop: str) -> tuple[tuple[str, int], ...]:
        """What one step of the loop adds."""
        return tuple((symbol, c) for name, symbol, c in self.terms if name == loop)

    @property
    def loops(self) -> frozenset[str]:
        return frozenset(loop for loop, _, _ in self.terms if loop)

    def text(self, names: Mapping[str, str]) -> str:
        """C++ of it; ``names``: of loops whose variable is called otherwise."""
        return " + ".join(_term(names.get(loop, loop), symbol, c) for loop, symbol, c in self.terms) or "0"


def _term(loop: str, symbol: str, c: int) -> str:
    return " * ".join([*filter(None, [loop, symbol]), *([str(c)] if c != 1 or not (loop or symbol) else [])])


def address(view: View, index: Indices) -> Address:
    terms: dict[tuple[str, str], int] = {("", UNIT): view.offset}
    for at, stride in zip(index, view.strides, strict=True):
        symbol, factor = (UNIT, stride) if isinstance(stride, int) else (stride, 1)
        for loop, c in (("", at.constant), *at.terms):
            terms[loop, symbol] = terms.get((loop, symbol), 0) + c * factor
    return Address(tuple(sorted((loop, symbol, c) for (loop, symbol), c in terms.items() if c)))


def dense(shape: Shape) -> tuple[int, ...]:
    """Strides of memory of our own: AXIS, wherever it stands, is the outermost dimension."""
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(range(len(shape))):
        if shape[dim] != AXIS:
            strides[dim] = step
            step *= int(shape[dim])
    return tuple(step if extent == AXIS else stride for extent, stride in zip(shape, strides, strict=True))


def launched(shape: Shape, name: str) -> tuple[Stride, ...]:
    """Strides of a tensor of a launch, which is dense and row-major: those of dimensions before AXIS are told."""
    strides: list[Stride] = []
    step: Stride = 1
    for dim in reversed(range(len(shape))):
        strides.append(step if isinstance(step, int) else f"{name}_s{dim}")
        extent = shape[dim]
        step = step * extent if isinstance(step, int) and isinstance(extent, int) else ""
    return tuple(reversed(strides))


def permuted(view: View, dims: Sequence[int]) -> View:
    return View(
        view.pointer, view.place, tuple(view.shape[d] for d in dims), tuple(view.strides[d] for d in dims), view.offset
    )


def sliced(view: View, dim: int, start: int, stop: int) -> View | None:
    stride = view.strides[dim]
    if not isinstance(stride, int):
        return None if start else _cut(view, dim, stop, 0)
    return _cut(view, dim, stop - start, start * stride)


def _cut(view: View, dim: int, extent: int, offset: int) -> View:
    shape = (*view.shape[:dim], extent, *view.shape[dim + 1 :])
    return View(view.pointer, view.place, shape, view.strides, view.offset + offset)


def broadcast(view: View, shape: Shape) -> View:
    new = len(shape) - len(view.shape)
    kept = [0 if extent == 1 else stride for extent, stride in zip(view.shape, view.strides, strict=True)]
    return View(view.pointer, view.place, shape, (*([0] * new), *kept), view.offset)


def reshaped(view: View, shape: Shape) -> View | None:
    """The same elements, where strides can say so."""
    strides: list[Stride] = [0] * len(shape)
    for inside, outside in groups(view.shape, shape):
        last = view.strides[inside[-1]]
        if len(inside) == len(outside) == 1:
            strides[outside[0]] = last
            continue
        step: Stride = last
        for dim in reversed(inside):
            if not isinstance(step, int) or view.strides[dim] != step:
                return None
            step *= int(view.shape[dim])
        assert isinstance(last, int)
        for dim in reversed(outside):
            strides[dim] = last
            last *= int(shape[dim])
    return View(view.pointer, view.place, shape, tuple(strides), view.offset)
