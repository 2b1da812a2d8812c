"""A graph as regions: what is computed in one sweep, what lies in memory between them, and in which order.

A *product* is a matrix product with the elementwise work behind it. A *nest* is a set of loops: reductions over the
same dimensions of one shape with the elementwise work among and behind them, or elementwise work alone. What neither
holds is computed where it is read; views cost nothing, but for what no strides can say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from kforge.backends.generic import memory
from kforge.backends.generic.memory import Place, View
from kforge.backends.generic.nodes import COSTLY
from kforge.operators.graph import ELEMENTWISE, REDUCTIONS, VIEWS, Graph, Op, Shape, Step


@dataclass(frozen=True)
class Store:
    value: str
    view: View


@dataclass(frozen=True)
class Region:
    """``members``: values computed inside. ``reads``: pointers to what it reads of what the kernel wrote."""

    members: frozenset[str]
    stores: tuple[Store, ...]
    reads: frozenset[str]


@dataclass(frozen=True)
class Nest(Region):
    """Loops over ``shape``; ``reductions``, in order, are over its dimensions ``reduced``."""

    shape: Shape
    reduced: tuple[int, ...]
    reductions: tuple[str, ...]

    @property
    def row(self) -> Shape:
        return tuple(1 if i in self.reduced else extent for i, extent in enumerate(self.shape))


@dataclass(frozen=True)
class Product(Region):
    step: Step


@dataclass(frozen=True)
class Plan:
    """``scratch``: shapes of the buffers of our own by the name of their pointer."""

    graph: Graph
    steps: Mapping[str, Step]
    shapes: Mapping[str, Shape]
    views: Mapping[str, View]
    regions: tuple[Region, ...]
    scratch: Mapping[str, Shape]

    def view(self, name: str) -> View | None:
        """Where a value lies, be it as a view of another."""
        return _view(name, self.views, self.steps)


def plan(graph: Graph, in_memory: frozenset[str] = frozenset()) -> Plan:
    """``in_memory``: values that must lie there because their readers can not compute them in place."""
    while True:
        planner = _Planner(graph, in_memory)
        planner.group()
        if more := planner.better_in_memory() - in_memory:
            in_memory |= more
            continue
        return planner.plan()


@dataclass
class _Group:
    """Values that are computed together, while they are collected."""

    shape: Shape
    reduced: tuple[int, ...] = ()
    product: str = ""
    members: set[str] = field(default_factory=set)


class _Planner:
    def __init__(self, graph: Graph, in_memory: frozenset[str]) -> None:
        self.graph = graph
        self.shapes = graph.shapes
        every = {step.name: step for step in graph.steps}
        reached = _reached(graph.outputs, every)
        self.steps = {name: every[name] for name in every if name in reached}
        self.consumers: dict[str, list[str]] = {name: [] for name in self.shapes}
        for step in self.steps.values():
            for name in step.inputs:
                self.consumers[name].append(step.name)
        self.wanted = {name for name in (*graph.outputs, *in_memory) if name in self.steps}
        self.owner: dict[str, _Group] = {}
        self.views: dict[str, View] = {}
        self.scratch: dict[str, Shape] = {}
        self.regions: list[Region] = []

    # Which values are computed together

    def group(self) -> None:
        for step in reversed(self.steps.values()):
            if step.op is Op.MATMUL:
                group = self._open(_Group(step.shape, product=step.name), step.name)
                self._grow(group, lambda s, g: self._behind(s, g, (g.shape,)))
        for step in self.steps.values():
            if step.op in REDUCTIONS and step.name not in self.owner:
                group = self._open(_Group(self.shapes[step.inputs[0]], step.dims), step.name)
                self._grow(group, self._of_nest)
        self._elementwise_groups()

    def _elementwise_groups(self) -> None:
        self._place()
        for name in self.steps:
            if name in self.wanted and name not in self.owner and not self._elsewhere(name):
                group = self._open(_Group(self.shapes[name]), name)
                self._grow(group, lambda s, g: s.name in self.wanted and s.op in ELEMENTWISE and s.shape == g.shape)

    def _open(self, group: _Group, name: str) -> _Group:
        group.members.add(name)
        self.owner[name] = group
        return group

    def _grow(self, group: _Group, fits: Callable[[Step, _Group], bool]) -> None:
        grown = True
        while grown:
            grown = False
            for step in self.steps.values():
                if step.name not in self.owner and fits(step, group):
                    self._open(group, step.name)
                    if self._acyclic():
                        grown = True
                    else:
                        group.members.remove(step.name)
                        del self.owner[step.name]

    def _behind(self, step: Step, group: _Group, shapes: tuple[Shape, ...]) -> bool:
        """Elementwise work on what the group makes."""
        return (
            (step.op in ELEMENTWISE or step.op is Op.BROADCAST)
            and step.shape in shapes
            and not group.members.isdisjoint(step.inputs)
        )

    def _of_nest(self, step: Step, group: _Group) -> bool:
        if step.op in REDUCTIONS:
            return self.shapes[step.inputs[0]] == group.shape and step.dims == group.reduced
        row = tuple(1 if i in group.reduced else extent for i, extent in enumerate(group.shape))
        ahead = (
            step.name in self.wanted
            and step.op in ELEMENTWISE
            and step.shape == group.shape
            and not group.members.isdisjoint(self.consumers[step.name])
        )
        return ahead or self._behind(step, group, (group.shape, row))

    def _acyclic(self) -> bool:
        """Whether the groups can be computed one after another."""
        unit = {name: id(self.owner[name]) if name in self.owner else name for name in self.steps}
        needs: dict[object, set[object]] = {u: set() for u in unit.values()}
        for step in self.steps.values():
            needs[unit[step.name]] |= {unit[i] for i in step.inputs if i in unit and unit[i] != unit[step.name]}
        try:
            TopologicalSorter(needs).prepare()
        except CycleError:
            return False
        return True

    def better_in_memory(self) -> set[str]:
        """Values whose costly computation would be done again and again where they are read."""
        found = set()
        for step in self.steps.values():
            inline = step.name not in self.owner and step.name not in self.wanted
            if inline and step.op in COSTLY and len(self._readers(step.name)) > 1:
                found.add(step.name)
            if step.op is Op.MATMUL:
                found |= {name for name in map(self._under_views, step.inputs) if self._costs(name)}
        return found

    def _readers(self, name: str) -> set[object]:
        found: set[object] = set()
        for consumer in self.consumers[name]:
            if consumer in self.owner:
                found.add(id(self.owner[consumer]))
            elif consumer in self.wanted or self.steps[consumer].op is Op.CONCAT:
                found.add(consumer)
            else:
                found |= self._readers(consumer)
        return found

    def _under_views(self, name: str) -> str:
        while name in self.steps and self.steps[name].op in VIEWS and name not in self.wanted:
            (name,) = self.steps[name].inputs
        return name

    def _costs(self, name: str) -> bool:
        if name not in self.steps or name in self.owner or name in self.wanted:
            return False
        step = self.steps[name]
        return step.op in COSTLY or (step.op is not Op.CONCAT and any(self._costs(i) for i in step.inputs))

    # Where values lie

    def _place(self) -> None:
        """Views of all values that must lie in memory, the last first: what it is part of decides where one lies."""
        for i, given in enumerate(self.graph.given):
            self.views[given.name] = View(f"in{i}", Place.GIVEN, given.shape, memory.launched(given.shape, f"in{i}"))
        for i, name in enumerate(self.graph.outputs):
            if name in self.steps and name not in self.views:
                shape = self.shapes[name]
                self.views[name] = View(f"out{i}", Place.OUTPUT, shape, memory.launched(shape, f"out{i}"))
        for step in reversed(self.steps.values()):
            if step.op is Op.CONCAT:
                self._view_of(step.name)
                self._place_parts(step)
            elif step.op is Op.RESHAPE and step.name in self.views and self._own(step.inputs[0], step.name):
                (below,) = step.inputs
                if (view := memory.reshaped(self.views[step.name], self.shapes[below])) is not None:
                    self.views[below] = view
                    self.wanted.add(below)

    def _place_parts(self, step: Step) -> None:
        for i, name in enumerate(step.inputs):
            part = self._part(step, i)
            if part is not None and self._own(name, step.name):
                self.views[name] = part
                self.wanted.add(name)

    def _part(self, step: Step, number: int) -> View | None:
        dim = step.dims[0]
        start = sum(int(self.shapes[name][dim]) for name in step.inputs[:number])
        return memory.sliced(self.views[step.name], dim, start, start + int(self.shapes[step.inputs[number]][dim]))

    def _own(self, name: str, consumer: str) -> bool:
        """Whether only this consumer reads the value, which may then lie where the consumer wants it."""
        return (
            name in self.steps
            and self.consumers[name] == [consumer]
            and name not in self.views
            and self.steps[name].op is not Op.SCALAR
        )

    def _elsewhere(self, name: str) -> bool:
        """Whether others write what stands there: the parts of a whole, or the same values under another shape."""
        step = self.steps[name]
        if step.op is not Op.RESHAPE or name not in self.views:
            return step.op is Op.CONCAT
        below = self.views.get(step.inputs[0])
        return below is not None and below.pointer == self.views[name].pointer

    def _view_of(self, name: str) -> View:
        if name not in self.views:
            shape = self.shapes[name]
            pointer = f"t{len(self.scratch)}"
            self.scratch[pointer] = shape
            self.views[name] = View(pointer, Place.SCRATCH, shape, memory.dense(shape))
        return self.views[name]

    # Regions in order

    def plan(self) -> Plan:
        for name in self.owner:
            if self._leaves(name):
                self._view_of(name)
        self._made: set[object] = set()
        for name in self.graph.outputs:
            self._make(name)
        written: set[str] = set()
        for i, name in enumerate(self.graph.outputs):
            own = self.views[name]
            shape = self.shapes[name]
            view = View(f"out{i}", Place.OUTPUT, shape, memory.launched(shape, f"out{i}"))
            if name in written or own.pointer != view.pointer:
                self._copy(name, view)
            written.add(name)
        return Plan(self.graph, self.steps, self.shapes, self.views, tuple(self.regions), self.scratch)

    def _leaves(self, name: str) -> bool:
        """Whether a member of a group is read outside of it."""
        group = self.owner[name]
        return name in self.wanted or any(c not in group.members for c in self.consumers[name])

    def _make(self, name: str) -> None:
        """Appends the regions that make a value, those before it first."""
        if name not in self.steps:
            return
        group = self.owner.get(name)
        mark: object = id(group) if group else name
        if mark in self._made:
            return
        self._made.add(mark)
        members = group.members if group else {name}
        for step in [s for s in self.steps.values() if s.name in members]:
            for below in step.inputs:
                if below not in members:
                    self._make(below)
        if group:
            self.regions.append(self._region(group))
        elif self.steps[name].op is Op.CONCAT:
            for i, below in enumerate(self.steps[name].inputs):
                part = self._part(self.steps[name], i)
                assert part is not None
                if self.views.get(below) != part:
                    self._copy(below, part)

    def _copy(self, name: str, view: View) -> None:
        inside = frozenset() if name in self.views else frozenset({name})
        reads = self._reads(inside) if inside else frozenset({self.views[name].pointer})
        self.regions.append(Nest(inside, (Store(name, view),), reads, self.shapes[name], (), ()))

    def _region(self, group: _Group) -> Region:
        ordered = [name for name in self.steps if name in group.members]
        members = frozenset(ordered)
        stores = tuple(Store(name, self.views[name]) for name in ordered if self._leaves(name))
        reads = self._reads(members)
        if group.product:
            return Product(members, stores, reads, self.steps[group.product])
        reductions = tuple(name for name in ordered if self.steps[name].op in REDUCTIONS)
        return Nest(members, stores, reads, group.shape, group.reduced, reductions)

    def _reads(self, members: frozenset[str]) -> frozenset[str]:
        """What is read from memory, directly or through what is computed in place."""
        found: set[str] = set()
        seen = set(members)
        waiting = [below for name in members for below in self.steps[name].inputs]
        while waiting:
            if (name := waiting.pop()) in seen:
                continue
            seen.add(name)
            if name in self.views:
                found.add(self.views[name].pointer)
            elif name in self.steps:
                waiting += self.steps[name].inputs
        return frozenset(found)


def _view(name: str, views: Mapping[str, View], steps: Mapping[str, Step]) -> View | None:
    if name in views:
        return views[name]
    step = steps.get(name)
    if step is None or step.op not in VIEWS or (below := _view(step.inputs[0], views, steps)) is None:
        return None
    if step.op is Op.PERMUTE:
        return memory.permuted(below, step.dims)
    if step.op is Op.SLICE:
        return memory.sliced(below, step.dims[0], *step.bounds)
    if step.op is Op.BROADCAST:
        return memory.broadcast(below, step.shape)
    return memory.reshaped(below, step.shape)


def _reached(outputs: Iterable[str], steps: Mapping[str, Step]) -> set[str]:
    found: set[str] = set()
    waiting = [name for name in outputs if name in steps]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += [i for i in steps[name].inputs if i in steps]
    return found
