"""C++ of a nest: loops with their reductions.

Vectors run along a reduced loop (a task is one row, and lanes are added up at its end) or along one that stays (a task
is some columns, each lane sums for itself; elementwise work is that without anything to reduce). Reductions that need
others come in a later *phase*, a sweep over the same row or columns, which are in cache by then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kforge.backends.generic import code, indices, loops
from kforge.backends.generic.code import Code, Lanes, Scope
from kforge.backends.generic.loops import Loop
from kforge.backends.generic.memory import Address, Place, View, address
from kforge.backends.generic.nodes import Node, Tracer
from kforge.backends.generic.online import Pair, begun, combined, pairs
from kforge.backends.generic.plan import Nest, Plan
from kforge.operators.graph import Op

_START = {Op.SUM: "V::splat(0.0f)", Op.MAX: "V::splat(-__builtin_inff())", Op.MIN: "V::splat(__builtin_inff())"}
_ACROSS = {Op.SUM: "sum", Op.MAX: "largest", Op.MIN: "smallest"}
_LONG, _CHUNK = 8192, 4096  # rows longer than this are summed in chunks, for the sake of the error
_KEPT_ROW, _KEPT_COLUMN = (
    1 << 18,
    1024,
)  # elements of a row, or rows of a tile of columns, that a cache has room to keep
_STACK = 40 << 10  # bytes of it for the arrays of a tile of columns
_ALONE = Loop("alone", 1)  # where a shape has no loops
_COLUMNS = (16, 64, 128)  # vectors of a tile, as far as the stack has room


class Way(StrEnum):
    """What a later sweep does about costly values of an earlier one."""

    AGAIN = "again"  # computes them again
    KEEP = "keep"  # has them kept in scratch
    ONLINE = "online"  # is spared where a reduction can be had along with the one it needs (online.py)


@dataclass(frozen=True)
class Reduction:
    name: str
    op: Op
    node: Node  # what it adds up
    phase: int


@dataclass(frozen=True)
class Target:
    """A value to store. ``phase``: the sweep in which all that it needs is there."""

    node: Node
    view: View
    address: Address
    phase: int
    by_row: bool  # once a row: no reduced loop is in its address


class NestCode:
    """``lines(way)``: the body of the region's function; ``areas(way)``: C++ of the floats that a thread needs."""

    def __init__(self, plan: Plan, nest: Nest) -> None:
        self._plan, self._nest = plan, nest
        self._read()
        self.by_row = self.along in self.reduced
        self.inside = frozenset(loop.name for loop in self.reduced)
        self.columns = not self.by_row and bool(self._summed)  # a tile of columns; else whole rows, or elementwise
        self._pairs: dict[str, Pair] = {}
        self._arrange(Way.AGAIN)
        self._frontier = self._made_by_row() if self.columns else []
        self._kept = self._worth_keeping()
        found = pairs({r.name: r.node for r in self.reductions}, {r.name: r.op for r in self.reductions}, self._length)
        self._online = found if self.by_row and self.reduced == [self.along] else {}
        self._numbers = itertools.count()
        self._uses = code.uses([r.node for r in self.reductions] + [t.node for t in self.targets])

    @property
    def ways(self) -> tuple[Way, ...]:
        """Those that differ, the best guess first."""
        ways = [Way.KEEP] * bool(self._kept) + [Way.AGAIN]
        if self._online:
            long = self._length > 1 << 16
            ways.insert(0 if long else len(ways), Way.ONLINE)
        return tuple(ways)

    @property
    def column_choices(self) -> list[int]:
        arrays = len(self.reductions) + len(self._frontier)
        return [n for n in _COLUMNS if arrays * n * 64 <= _STACK] or [4]

    @property
    def _length(self) -> int:
        return math.prod(int(loop.extent) for loop in self.reduced)

    # From the plan

    def _read(self) -> None:
        nest, plan = self._nest, self._plan

        def traced(splits: dict[str, int]) -> None:
            over = loops.space(nest.shape, splits)
            row = tuple(indices.ZERO if i in nest.reduced else at for i, at in enumerate(over.index))
            outer = over.of(i for i in range(len(nest.shape)) if i not in nest.reduced)
            names = frozenset(loop.name for loop in outer) or frozenset({_ALONE.name})
            tracer = Tracer(
                plan.steps,
                plan.shapes,
                plan.view,
                nest.members,
                dict.fromkeys(nest.reductions, names),
                over.extents,
                {},
            )
            summed = {name: tracer.trace(plan.steps[name].inputs[0], over.index) for name in nest.reductions}
            stored = []
            for store in nest.stores:
                at = over.index if plan.shapes[store.value] == nest.shape else row
                stored.append((tracer.trace(store.value, at), store.view, address(store.view, at)))
            self._join(outer, over.of(nest.reduced), summed, stored)

        loops.with_splits(traced)

    def _join(
        self,
        outer: Sequence[Loop],
        reduced: Sequence[Loop],
        summed: dict[str, Node],
        stored: list[tuple[Node, View, Address]],
    ) -> None:
        nodes = [*summed.values(), *(node for node, _, _ in stored)]
        read = [n.address for node in nodes for n in node.below() if n.address is not None]
        (self.outer, self.reduced), gone = loops.joined([outer, reduced], [*read, *(at for _, _, at in stored)])
        new = loops.rewritten(nodes, gone)
        if not self.outer and not self.reduced:
            self.outer = [_ALONE]
        addresses = [loops.without(at, gone) for at in [*read, *(at for _, _, at in stored)]]
        self.along = loops.along([*self.outer, *self.reduced], addresses)
        self._summed = {name: new[node] for name, node in summed.items()}
        self._stored = [(new[node], view, loops.without(at, gone)) for node, view, at in stored]

    def _arrange(self, way: Way) -> None:
        """Which sweep does what."""
        self._pairs = self._online if way is Way.ONLINE else {}
        self._phases: dict[str, int] = {}
        self.reductions: list[Reduction] = []
        for name, node in self._summed.items():
            pair = self._pairs.get(name)
            self._phases[name] = self._phases[pair.first] if pair else self._phase(node)
            self.reductions.append(Reduction(name, self._plan.steps[name].op, node, self._phases[name]))
        self.targets = [
            Target(node, view, at, self._phase(node), not at.loops & self.inside) for node, view, at in self._stored
        ]
        self._last = max([r.phase for r in self.reductions] + [t.phase for t in self.targets], default=0)

    def _phase(self, node: Node) -> int:
        """The first sweep in which all that the node needs is there."""
        return max((self._phases[name] + 1 for name in node.holds), default=0)

    def _made_by_row(self) -> list[Node]:
        """Values of a column, made of reductions, that sweeps use: each in an array of the tile."""
        found: dict[Node, None] = {}
        for top in [r.node for r in self.reductions] + [t.node for t in self.targets if not t.by_row]:
            used = [top, *(arg for node in top.below() if node.loops & self.inside for arg in node.args)]
            found |= dict.fromkeys(n for n in used if n.holds and not n.held and not n.loops & self.inside)
        return list(found)

    def _worth_keeping(self) -> list[Node]:
        if not self.reduced or self._length > (_KEPT_ROW if self.by_row else _KEPT_COLUMN):
            return []
        seen: set[Node] = set()
        kept: dict[Node, None] = {}
        for phase in range(self._last + 1):
            tops = [r.node for r in self.reductions if r.phase == phase]
            tops += [t.node for t in self.targets if t.phase == phase and not t.by_row]
            for top in tops:
                self._find_kept(top, seen, kept)
            seen |= {node for top in tops for node in top.below()}
        return list(kept)

    def _find_kept(self, top: Node, seen: set[Node], kept: dict[Node, None]) -> None:
        """The uppermost costly values under ``top`` that an earlier sweep has seen."""
        waiting, known = [top], {top}
        while waiting:
            node = waiting.pop()
            if node in seen and node.costly and node.loops & self.inside:
                kept[node] = None
                continue
            waiting += [arg for arg in node.args if arg not in known]
            known.update(node.args)

    def areas(self, way: Way) -> str:
        return f"{len(self._kept)} * {self._kept_floats}" if way is Way.KEEP else "0"

    @property
    def _kept_floats(self) -> str:
        return str(-(-self._length // 16) * 16 + 16) if self.by_row else f"{self._length} * {{{{ columns }}}} * W"

    # C++

    def lines(self, way: Way) -> list[str]:
        self._arrange(way)
        self._keep = self._kept if way is Way.KEEP else []
        self._held: dict[Node, str] = {}
        known = {_ALONE.name, *(loop.name for loop in self.outer)} - {self.along.name}
        self._task = Scope(frozenset(known))
        self._decode()
        for number in range(len(self._keep)):
            self._task.lines.append(f"float *const kept{number} = area + {number} * {self._kept_floats};")
        for phase in range(self._last + 2):
            self._rows_of(phase)
            self._sweep(phase)
        tile = (
            []
            if self.by_row
            else [f"constexpr int64_t kTile = {'{{ columns }} * W' if self.columns else '{{ chunk }}'};"]
        )
        return [
            *tile,
            f"const int64_t tasks = {self._tasks()};",
            "const int64_t end = tasks * (c.thread + 1) / c.threads;",
            "for (int64_t task = tasks * c.thread / c.threads; task < end; ++task) {",
            *self._task.lines,
            "}",
        ]

    def _tasks(self) -> str:
        parts = [loop.text for loop in self.outer if loop is not self.along]
        if not self.by_row:
            parts.append(f"(({self.along.text} + kTile - 1) / kTile)")
        return " * ".join(["int64_t{1}", *parts])

    def _decode(self) -> None:
        lines = self._task.lines
        lines.append("int64_t rest = task;")
        if not self.by_row:
            lines += [
                f"const int64_t extent = {self.along.text};",
                "const int64_t parts = (extent + kTile - 1) / kTile;",
                "const int64_t c0 = rest % parts * kTile, c1 = c0 + kTile < extent ? c0 + kTile : extent;",
                "rest /= parts;",
            ]
        lines += [*decoded("rest", [loop for loop in self.outer if loop is not self.along]), "(void)rest;"]

    def _rows_of(self, phase: int) -> None:
        """What is there once a row or column, before the sweep of this phase."""
        targets = [t for t in self.targets if t.by_row and t.phase == phase]
        if self.by_row:
            writer = self._writer([self._task])
            self._task.lines += [self._store(writer, target) for target in targets]
            return
        frontier = {node: f"m{number}" for number, node in enumerate(self._frontier) if self._phase(node) == phase}
        if not targets and not frontier:
            return
        self._task.lines += [f"alignas(64) float {array}[kTile];" for array in frontier.values()]

        def body(writer: Code) -> None:
            lines = writer.scopes[-1].lines
            lines += [f"V::store({array} + (j - c0), {writer.value(node)});" for node, array in frontier.items()]
            lines += [self._store(writer, target) for target in targets]

        self._loop(self._task.lines, [self._task], body)
        for node, array in frontier.items():
            self._held[node] = f"V::load({array} + (j - c0))"

    def _sweep(self, phase: int) -> None:
        reductions = [r for r in self.reductions if r.phase == phase]
        targets = [t for t in self.targets if t.phase == phase and not t.by_row]
        if not reductions and not targets:
            return
        task = self._task
        around = [loop for loop in self.reduced if loop is not self.along]
        scopes = [task]
        for loop in around:
            scopes.append(Scope(scopes[-1].loops | {loop.name}))
        before = self._begun(reductions)
        inner: list[str] = []
        if self.by_row:
            self._row(inner, scopes, reductions, targets)
        else:
            self._loop(inner, scopes, lambda writer: self._body(writer, reductions, targets))
        for loop, scope in zip(reversed(around), reversed(scopes[1:]), strict=True):
            inner = [
                f"for (int64_t {loop.name} = 0; {loop.name} < {loop.text}; ++{loop.name}) {{",
                *scope.lines,
                *inner,
                "}",
            ]
        task.lines += [*before, *inner]
        for r in reductions:
            number = self._number(r)
            if self.by_row:
                task.lines.append(f"const F r{number} = {self._across(r, f'total{number}')};")
            for node in self._holding(r.name):
                self._held[node] = f"r{number}" if self.by_row else f"V::load(s{number} + (j - c0))"
        for node in self._first_here(reductions, targets):
            self._held[node] = f"V::load({self._kept_place(node)})"

    def _across(self, r: Reduction, total: str) -> str:
        """One value of a row's lanes; a pair's have it in all lanes."""
        in_pair = r.name in self._pairs or any(pair.first == r.name for pair in self._pairs.values())
        return total if in_pair else f"V::splat(V::{_ACROSS[r.op]}({total}))"

    def _begun(self, reductions: Sequence[Reduction]) -> list[str]:
        lines = []
        for r in reductions:
            number = self._number(r)
            if self.by_row:
                lines.append(f"F total{number} = {_START[r.op]};")
            else:
                lines += [
                    f"alignas(64) float s{number}[kTile];",
                    f"for (int64_t q = 0; q < kTile; q += W) V::store(s{number} + q, {_START[r.op]});",
                ]
        return lines

    def _number(self, r: Reduction) -> int:
        return self.reductions.index(r)

    def _holding(self, name: str) -> list[Node]:
        tops = [r.node for r in self.reductions] + [t.node for t in self.targets]
        return list({node: None for top in tops for node in top.below() if node.held == name})

    def _first_here(self, reductions: Sequence[Reduction], targets: Sequence[Target]) -> list[Node]:
        """Values to keep that this sweep computes and no earlier one did."""
        below = {n for top in [*(r.node for r in reductions), *(t.node for t in targets)] for n in top.below()}
        return [node for node in self._keep if node in below and node not in self._held]

    def _kept_place(self, node: Node) -> str:
        stride, parts = 1, []
        for loop in reversed([loop for loop in self.reduced if loop is not self.along]):
            parts.append(f"{loop.name} * {stride}")
            stride *= int(loop.extent)
        pointer, flat = f"kept{self._keep.index(node)}", " + ".join(parts) or "0"
        return (
            f"{pointer} + ({flat}) * {self.along.text} + j"
            if self.by_row
            else f"{pointer} + ({flat}) * kTile + (j - c0)"
        )

    def _row(self, lines: list[str], scopes: list[Scope], reductions: list[Reduction], targets: list[Target]) -> None:
        """The innermost loop along a row, in chunks where it is long; sums of a chunk are added up before they join the
        total."""
        extent = int(self.along.extent)
        seconds = [r for r in reductions if r.name in self._pairs]
        if seconds or (extent > _LONG and any(r.op is Op.SUM for r in reductions)):
            lines += [
                f"for (int64_t c0 = 0; c0 < {extent}; c0 += {_CHUNK}) {{",
                f"const int64_t c1 = c0 + {_CHUNK} < {extent} ? c0 + {_CHUNK} : {extent};",
            ]
        else:
            lines += ["{", f"constexpr int64_t c0 = 0, c1 = {extent};"]
        firsts = [r for r in reductions if r not in seconds]
        self._chunk(lines, scopes, firsts, targets)
        for r in firsts:
            second = next((s for s in seconds if self._pairs[s.name].first == r.name), None)
            number = self._number(r)
            sums = [f"total{number} = {_combined(r.op, f'total{number}', f'a{number}_{{{{ u }}}}')};"]
            if second is None:
                lines += [_EACH, *sums, _END]
                continue
            pair = self._pairs[second.name]
            lines += [
                "{% for u in range(1, unroll) %}",
                f"a{number}_0 = {_combined(r.op, f'a{number}_0', f'a{number}_{{{{ u }}}}')};",
                _END,
                f"const F part{number} = V::splat(V::{_ACROSS[r.op]}(a{number}_0));",
                *begun(pair, number),
            ]
            around = self._held
            self._held = {**around, pair.at: f"at{number}"}
            self._chunk(lines, scopes, [second], [])
            self._held = around
            other = self._number(second)
            lines += [
                "{% for u in range(1, unroll) %}",
                f"a{other}_0 = a{other}_0 + a{other}_{{{{ u }}}};",
                _END,
                *combined(pair, number, other),
            ]
        lines.append("}")

    def _chunk(self, lines: list[str], scopes: list[Scope], reductions: list[Reduction], targets: list[Target]) -> None:
        for r in reductions:
            lines += [_EACH, f"F a{self._number(r)}_{{{{ u }}}} = {_START[r.op]};", _END]
        self._loop(lines, scopes, lambda writer: self._body(writer, reductions, targets))

    def _body(self, writer: Code, reductions: Sequence[Reduction], targets: Sequence[Target]) -> None:
        lines = writer.scopes[-1].lines
        masked = bool(writer.lanes.count) and self.by_row
        for r in reductions:
            number = self._number(r)
            so_far = f"a{number}_{{{{ u }}}}" if self.by_row else f"V::load(s{number} + (j - c0))"
            if r.op is Op.SUM and not masked and (factors := writer.fused(r.node)) is not None:
                made = f"V::madd({factors[0]}, {factors[1]}, {so_far})"
            else:
                term = writer.value(r.node)
                if masked:
                    term = f"V::select(V::first({writer.lanes.count}), {term}, {_START[r.op]})"
                made = _combined(r.op, so_far, term)
            lines.append(f"{so_far} = {made};" if self.by_row else f"V::store(s{number} + (j - c0), {made});")
        for node in self._first_here(reductions, targets):
            lines.append(f"V::store({self._kept_place(node)}, {writer.value(node)});")
        lines += [self._store(writer, target) for target in targets]

    def _store(self, writer: Code, target: Target) -> str:
        return writer.store(target.view, target.address, writer.value(target.node), target.view.place is Place.OUTPUT)

    def _writer(self, scopes: list[Scope], count: str = "") -> Code:
        return Code(scopes, Lanes(self.along.name, count), self._held, self._uses, self._numbers)

    def _loop(self, lines: list[str], scopes: list[Scope], body: Callable[[Code], None]) -> None:
        """The loop along vectors from c0 to c1: some at a time, one at a time, and the rest."""

        def written(count: str) -> list[str]:
            scope = Scope(scopes[-1].loops | {self.along.name})
            body(self._writer([*scopes, scope], count))
            return scope.lines

        whole, part = written(""), written("n")
        at = self.along.name
        lines += [
            "{",
            f"int64_t {at} = c0;",
            "{% for many in [unroll, 1] | unique %}",
            f"for (; {at} + {{{{ many }}}} * W <= c1; {at} += {{{{ many }}}} * W) {{",
            "{% for u in range(many) %}",
            "{",
            f"const int64_t j = {at} + {{{{ u }}}} * W;",
            *whole,
            "}",
            _END,
            "}",
            _END,
            f"if ({at} < c1) {{",
            "{% for u in [0] %}",
            f"const int64_t j = {at}, n = c1 - j;",
            *part,
            _END,
            "}",
            "}",
        ]


def decoded(number: str, outer: Sequence[Loop]) -> list[str]:
    """C++ that takes a number apart into loops, the last one counting fastest."""
    lines = []
    for loop in reversed(outer[1:]):
        lines += [f"const int64_t {loop.name} = {number} % ({loop.text});", f"{number} /= {loop.text};"]
    if outer:
        lines.append(f"const int64_t {outer[0].name} = {number};")
    return lines


def _combined(op: Op, a: str, b: str) -> str:
    return f"{a} + {b}" if op is Op.SUM else f"V::{'maximum' if op is Op.MAX else 'minimum'}({a}, {b})"


_EACH = "{% for u in range(unroll) %}"
_END = "{% endfor %}"
