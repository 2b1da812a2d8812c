"""What torch's views, joins, copies and constants are in a graph's operations."""

from __future__ import annotations

from collections.abc import Sequence

from kforge.importing.aten import RULES, Rule, rule
from kforge.importing.aten_sums import transposed
from kforge.importing.builder import Builder, Value, axes, axis, fixed
from kforge.importing.failures import NotDynamic, Unsupported
from kforge.operators.graph import Extent, Op, Shape

_END = 1 << 62  # torch's slices end at a huge number where no end is given


@rule("view.default", "reshape.default", "_unsafe_view.default", "_reshape_copy.default", "view_copy.default")
def _view(b: Builder, x: Value, shape: Sequence[Extent]) -> Value:
    return b.reshape(x, _without_minus_one(x, list(shape)))


def _without_minus_one(x: Value, shape: list[Extent]) -> Shape:
    if -1 not in shape:
        return tuple(shape)
    known, whole = list(shape), list(x.shape)
    known.remove(-1)
    for extent in [e for e in known if not isinstance(e, int)]:  # B on both sides
        if extent not in whole:
            raise NotDynamic(f"a view of {x.shape} as {shape}")
        whole.remove(extent)
    if any(not isinstance(extent, int) for extent in whole):
        left = [e for e in whole if not isinstance(e, int)]
        if len(left) == 1 and _product(known) == _product(whole):
            return tuple(left[0] if extent == -1 else extent for extent in shape)
        raise NotDynamic(f"a view of {x.shape} as {shape}")
    return tuple(_product(whole) // max(_product(known), 1) if extent == -1 else extent for extent in shape)


def _product(extents: Sequence[Extent]) -> int:
    total = 1
    for extent in extents:
        total *= extent if isinstance(extent, int) else 1
    return total


@rule("unsqueeze.default")
def _unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    rank = len(x.shape) + 1
    at = dim % rank
    return b.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@rule("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(b: Builder, x: Value, dims: Sequence[int] | int | None = None) -> Value:
    chosen = () if dims == [] else axes(x, dims)
    return b.reshape(x, tuple(e for i, e in enumerate(x.shape) if i not in chosen or e != 1))


@rule("permute.default")
def _permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    return b.permute(x, [axis(x, dim) for dim in dims])


RULES["transpose.int"] = transposed
RULES["t.default"] = lambda b, x: transposed(b, x) if len(x.shape) == 2 else x
RULES["numpy_T.default"] = lambda b, x: b.permute(x, reversed(range(len(x.shape))))


@rule("expand.default", "expand_copy.default")
def _expand(b: Builder, x: Value, shape: Sequence[Extent], implicit: bool = False) -> Value:
    ahead = len(shape) - len(x.shape)
    wanted = tuple(x.shape[i - ahead] if extent == -1 else extent for i, extent in enumerate(shape))
    return b.broadcast(x, wanted)


def _slice(b: Builder, x: Value, dim: int, start: int, stop: int) -> Value:
    if (start, stop) == (0, x.shape[dim]):
        return x
    return b.make(Op.SLICE, x, dims=(dim,), bounds=(start, stop))


@rule("select.int")
def _select(b: Builder, x: Value, dim: int, index: int) -> Value:
    at = axis(x, dim)
    extent = fixed(x.shape[at])
    place = index % extent
    return b.reshape(_slice(b, x, at, place, place + 1), (*x.shape[:at], *x.shape[at + 1:]))


@rule("slice.Tensor")
def _sliced(b: Builder, x: Value, dim: int = 0, start: int | None = None, end: Extent | None = None,
            step: int = 1) -> Value:
    at = axis(x, dim)
    extent = x.shape[at]
    if step != 1:
        raise Unsupported(f"it takes a slice with step {step}")
    if not start and (end is None or end == extent or (isinstance(end, int) and end >= _END)):
        return x
    size = fixed(extent)
    if end is not None and not isinstance(end, int):
        raise NotDynamic("a slice ends at the number of rows")
    first, last, _ = slice(start, end).indices(size)
    return _slice(b, x, at, first, last)


@rule("split_with_sizes.default")
def _split(b: Builder, x: Value, sizes: Sequence[int], dim: int = 0) -> list[Value]:
    at, made, start = axis(x, dim), [], 0
    for size in sizes:
        made.append(_slice(b, x, at, start, start + size))
        start += size
    return made


@rule("split.Tensor")
def _split_evenly(b: Builder, x: Value, size: int, dim: int = 0) -> list[Value]:
    extent = fixed(x.shape[axis(x, dim)])
    return _split(b, x, [min(size, extent - start) for start in range(0, extent, size)], dim)


@rule("unbind.int")
def _unbind(b: Builder, x: Value, dim: int = 0) -> list[Value]:
    return [_select(b, x, dim, i) for i in range(fixed(x.shape[axis(x, dim)]))]


@rule("cat.default")
def _cat(b: Builder, parts: Sequence[Value], dim: int = 0) -> Value:
    return b.make(Op.CONCAT, *parts, dims=(axis(parts[0], dim),))


@rule("stack.default")
def _stack(b: Builder, parts: Sequence[Value], dim: int = 0) -> Value:
    at = dim % (len(parts[0].shape) + 1)
    return _cat(b, [_unsqueeze(b, part, at) for part in parts], at)


def _same(b: Builder, x: Value, *_: object, **__: object) -> Value:
    return x


RULES.update(dict[str, Rule].fromkeys(
    ("clone.default", "contiguous.default", "alias.default", "detach.default", "detach_.default", "to.dtype",
     "lift_fresh_copy.default", "_to_copy.default", "to.dtype_layout", "type_as.default", "positive.default"), _same))


RULES["native_dropout.default"] = lambda b, x, p, train: (_dropout(b, x, p, train), None)


@rule("dropout.default")
def _dropout(b: Builder, x: Value, p: float = 0.5, train: bool | None = False) -> Value:
    if train and p > 0:
        raise Unsupported("it drops values at random")
    return x


@rule("full.default", "new_full.default", "full_like.default")
def _full(b: Builder, like: Value | Sequence[Extent], *rest: object, **_: object) -> Value:
    if isinstance(like, Value) and len(rest) > 1:  # new_full(x, size, value)
        like, rest = rest[0], rest[1:]  # type: ignore[assignment]
    shape = like.shape if isinstance(like, Value) else tuple(like)
    return b.broadcast(b.value(rest[0]), shape)  # type: ignore[arg-type]


RULES["zeros.default"] = lambda b, shape, **_: _full(b, shape, 0.0)
RULES["ones.default"] = lambda b, shape, **_: _full(b, shape, 1.0)
RULES["zeros_like.default"] = lambda b, x, **_: _full(b, x, 0.0)
RULES["ones_like.default"] = lambda b, x, **_: _full(b, x, 1.0)
RULES["scalar_tensor.default"] = lambda b, value, **_: b.value(value)
