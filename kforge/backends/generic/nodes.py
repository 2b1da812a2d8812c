"""What a region computes for one point of its loops: a graph of loads, constants, held values and operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kforge.backends.generic import indices, memory
from kforge.backends.generic.indices import Extents, Index, Indices
from kforge.backends.generic.memory import Address, View, address
from kforge.operators.graph import ELEMENTWISE, Op, Shape, Step

COSTLY = frozenset(
    {Op.EXP, Op.LOG, Op.SQRT, Op.RSQRT, Op.RECIPROCAL, Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN, Op.COS, Op.DIV, Op.POW}
)


@dataclass(frozen=True, eq=False)
class Node:
    """One of: a constant (``value``), a load (``view`` at ``address``), what the region itself holds (``held``), or
    ``op`` of ``args``. The same computation is the same object. ``loops``: of which it is a function; ``holds``: the
    held values below it; ``costly``: whether an operation of ``COSTLY`` is among those below or its own.
    """

    op: Op | None
    args: tuple[Node, ...]
    loops: frozenset[str]
    holds: frozenset[str]
    costly: bool
    value: float = 0.0
    view: View | None = None
    address: Address | None = None
    held: str = ""

    def below(self) -> dict[Node, None]:
        """Itself and all that it is computed from, in an order of evaluation."""
        found: dict[Node, None] = {}

        def walk(node: Node) -> None:
            if node not in found:
                for arg in node.args:
                    walk(arg)
                found[node] = None

        walk(self)
        return found


@dataclass(frozen=True, eq=False)
class Tracer:
    """Makes nodes of the graph's values. ``inside``: values that the region computes, so that they are not read from
    memory; ``held``: of these the ones that it has at hand, with the loops of which they are functions.

    ``view``: where a value lies in memory, None for one that does not.
    """

    steps: Mapping[str, Step]
    shapes: Mapping[str, Shape]
    view: Callable[[str], View | None]
    inside: frozenset[str]
    held: Mapping[str, frozenset[str]]
    loops: Extents
    _known: dict[object, Node]

    def trace(self, name: str, index: Indices) -> Node:
        """The value at an index. Raises indices.Split and indices.Opaque."""
        if name in self.held:
            return self._node(
                ("held", name), lambda: Node(None, (), self.held[name], frozenset({name}), False, held=name)
            )
        if name not in self.inside and (view := self.view(name)) is not None:
            return self.load(view, index)
        step = self.steps[name]
        if step.op is Op.SCALAR:
            return self._node(
                ("scalar", repr(step.value)), lambda: Node(None, (), frozenset(), frozenset(), False, step.value)
            )
        if step.op in ELEMENTWISE or step.op is Op.BROADCAST:
            args = tuple(self.trace(i, indices.aligned(index, step.shape, self.shapes[i])) for i in step.inputs)
            return args[0] if step.op is Op.BROADCAST else self._apply(step.op, args)
        (below,) = step.inputs
        if (
            step.op is Op.RESHAPE
            and below not in self.inside
            and (view := self.view(below)) is not None
            and (again := memory.reshaped(view, step.shape)) is not None
        ):
            return self.load(again, index)
        return self.trace(below, self._seen_through(step, index))

    def load(self, view: View, index: Indices) -> Node:
        at = address(view, index)
        return self._node(
            (view.pointer, at), lambda: Node(None, (), at.loops, frozenset(), False, view=view, address=at)
        )

    def _seen_through(self, step: Step, index: Indices) -> Indices:
        (below,) = step.inputs
        shape = self.shapes[below]
        if step.op is Op.PERMUTE:
            at: list[Index] = [indices.ZERO] * len(shape)
            for i, dim in enumerate(step.dims):
                at[dim] = index[i]
            return tuple(at)
        if step.op is Op.SLICE:
            return tuple(at.plus(step.bounds[0]) if dim == step.dims[0] else at for dim, at in enumerate(index))
        assert step.op is Op.RESHAPE, step
        return indices.reshaped(index, step.shape, shape, self.loops, below)

    def _apply(self, op: Op, args: tuple[Node, ...]) -> Node:
        def make() -> Node:
            loops, holds = (frozenset().union(*(getattr(arg, what) for arg in args)) for what in ("loops", "holds"))
            return Node(op, args, loops, holds, op in COSTLY or any(arg.costly for arg in args))

        return self._node((op, args), make)

    def _node(self, key: object, make: Callable[[], Node]) -> Node:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]
