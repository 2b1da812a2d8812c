"""A graph as another one that computes the same, and of which better loops can be made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kforge.operators.graph import AXIS, REDUCTIONS, Graph, Op, Shape, Step, result_shape

_WHOLE = 1 << 16  # elements of which one number is made: from here on by all threads
_PARTS = 64  # at most, that they are shared out in


def simplified(graph: Graph) -> Graph:
    """Products with a single column or row as sums, and reductions of a whole tensor in two steps, parts first."""
    steps: list[Step] = []
    for step in graph.steps:
        if step.op is Op.MATMUL:
            steps += _product(step, graph.shapes)
        elif step.op in REDUCTIONS and math.prod(_known(graph.shapes[step.inputs[0]])) >= _WHOLE:
            steps += _reduction(step, graph.shapes[step.inputs[0]])
        else:
            steps.append(step)
    return Graph(graph.given, tuple(steps), graph.outputs)


def _product(step: Step, shapes: Mapping[str, Shape]) -> Iterable[Step]:
    a, b = step.inputs
    left, right = shapes[a], shapes[b]
    if step.shape[-1] == 1:
        turned = _turned(f"{step.name}.turned", b, right)
        product = _step(f"{step.name}.terms", Op.MUL, (a, turned.name), [left, turned.shape])
        return [turned, product, Step(step.name, Op.SUM, (product.name,), step.shape, dims=(len(step.shape) - 1,))]
    if step.shape[-2] == 1 and len(right) == len(step.shape) and right[:-2] == step.shape[:-2]:
        turned = _turned(f"{step.name}.turned", a, left)
        product = _step(f"{step.name}.terms", Op.MUL, (turned.name, b), [turned.shape, right])
        return [turned, product, Step(step.name, Op.SUM, (product.name,), step.shape, dims=(len(step.shape) - 2,))]
    return [step]


def _turned(name: str, of: str, shape: Shape) -> Step:
    """The last two dimensions exchanged."""
    last = len(shape)
    dims = (*range(last - 2), last - 1, last - 2)
    return Step(name, Op.PERMUTE, (of,), tuple(shape[d] for d in dims), dims=dims)


def _reduction(step: Step, shape: Shape) -> Iterable[Step]:
    if AXIS in shape or any(extent != 1 for dim, extent in enumerate(shape) if dim not in step.dims):
        return [step]
    parts = {dim: max(p for p in range(1, _PARTS + 1) if int(shape[dim]) % p == 0) for dim in step.dims}
    dim = max(parts, key=lambda d: (parts[d] > _PARTS // 8, parts[d] if parts[d] <= _PARTS // 8 else -d))
    if parts[dim] == 1:
        return [step]
    split = (*shape[:dim], parts[dim], int(shape[dim]) // parts[dim], *shape[dim + 1 :])
    cut = Step(f"{step.name}.cut", Op.RESHAPE, step.inputs, split)
    inner = _step(
        f"{step.name}.parts", step.op, (cut.name,), [split], dims=tuple(d for d in range(len(split)) if d != dim)
    )
    outer = _step(f"{step.name}.whole", step.op, (inner.name,), [inner.shape], dims=(dim,))
    return [cut, inner, outer, Step(step.name, Op.RESHAPE, (outer.name,), step.shape)]


def _step(name: str, op: Op, inputs: tuple[str, ...], shapes: list[Shape], dims: tuple[int, ...] = ()) -> Step:
    made = Step(name, op, inputs, (), dims=dims)
    return replace(made, shape=result_shape(made, shapes))


def _known(shape: Shape) -> list[int]:
    return [extent for extent in shape if isinstance(extent, int)]
