"""C++ of a matrix product with the elementwise work behind it.

Rows are the dimension M together with the batch dimensions that B does not have; what is left is the batch. A task is
some rows times some columns of one batch entry, over all of K in blocks: B is packed into panels of kNr columns (by
each task its own, or all of it by everybody first), A into tiles of kMr rows, and a micro-kernel of kMr x kNr sums in
registers runs over them. Sums of a task wait in scratch from block to block; after the last block they are finished and
stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kforge.backends.generic import code, loops
from kforge.backends.generic.code import Code, Lanes, Scope
from kforge.backends.generic.indices import aligned
from kforge.backends.generic.loops import Loop
from kforge.backends.generic.memory import UNIT, Address, Place, View, address
from kforge.backends.generic.nest import decoded
from kforge.backends.generic.nodes import Node, Tracer
from kforge.backends.generic.plan import Plan, Product
from kforge.operators.graph import AXIS

PACKED_BYTES = 96 << 20  # of B, at most, for it to be packed as a whole
_PADDING = 128  # columns, at most, that panels are wider than B
_ALONE = Loop("column", 1)


@dataclass(frozen=True)
class Function:
    """``head`` opens it; the brace that closes it is not in ``body``."""

    head: str
    body: list[str]


@dataclass(frozen=True)
class Target:
    node: Node
    view: View
    address: Address


class ProductCode:
    """``functions(n)``: of region n, ``region_n`` the last of them. ``shared``: whether B may be packed whole."""

    def __init__(self, plan: Plan, product: Product) -> None:
        self._plan, self._product = plan, product
        shape = product.step.shape
        self._read()
        self.k = int(plan.shapes[product.step.inputs[0]][-1])
        self.n = shape[-1]
        wide = (self.n if isinstance(self.n, int) else 0) + _PADDING
        self.shared = not self.batch and self.n != AXIS and 4 * self.k * wide <= PACKED_BYTES
        self._numbers = itertools.count()
        self._uses = code.uses([self.a, self.b, *(t.node for t in self.targets)])

    def _read(self) -> None:
        plan, step = self._plan, self._product.step
        a, b = (plan.shapes[name] for name in step.inputs)

        def traced(splits: dict[str, int]) -> None:
            over = loops.space(step.shape, splits)
            k = loops.space((a[-1],), splits, "kk")
            extents = {**over.extents, **k.extents}
            dims = len(step.shape)
            own = frozenset(over.extents) | (frozenset() if over.dims[-1] else {_ALONE.name})
            tracer = Tracer(plan.steps, plan.shapes, plan.view, self._product.members, {step.name: own}, extents, {})
            batch = over.index[:-2]
            at_a = (*aligned(batch, step.shape[:-2], a[:-2]), over.index[-2], *k.index)
            at_b = (*aligned(batch, step.shape[:-2], b[:-2]), *k.index, over.index[-1])
            left, right = tracer.trace(step.inputs[0], at_a), tracer.trace(step.inputs[1], at_b)
            stored = [
                (tracer.trace(s.value, over.index), s.view, address(s.view, over.index)) for s in self._product.stores
            ]
            rows = [loop for dim in range(dims - 2) for loop in over.dims[dim] if loop.name not in right.loops]
            batches = [loop for dim in range(dims - 2) for loop in over.dims[dim] if loop.name in right.loops]
            runs = [[*rows, *over.dims[-2]], batches, list(over.dims[-1]), list(k.dims[0])]
            self._join(runs, left, right, stored)

        loops.with_splits(traced, whole=(f"i{len(step.shape) - 1}", "kk0"))

    def _join(self, runs: Sequence[Sequence[Loop]], a: Node, b: Node, stored: list[tuple[Node, View, Address]]) -> None:
        nodes = [a, b, *(node for node, _, _ in stored)]
        addresses = [n.address for node in nodes for n in node.below() if n.address is not None]
        addresses += [at for _, _, at in stored]
        (rows, batch, columns, depth), gone = loops.joined(runs, addresses)
        new = loops.rewritten(nodes, gone)
        self.rows, self.batch = rows, batch
        self.columns, self.depth = columns or [_ALONE], depth or [Loop("kk", 1)]
        self.a, self.b = new[a], new[b]
        self.targets = [Target(new[node], view, loops.without(at, gone)) for node, view, at in stored]

    def functions(self, number: int) -> list[Function]:
        batch = "".join(f", const int64_t {loop.name}" for loop in self.batch)
        passed = "".join(f", {loop.name}" for loop in self.batch)
        return [
            Function(
                f"static inline void pack_a_{number}(const Call &c{batch}, const int64_t row0, const int64_t count,"
                " const int64_t k0, const int64_t depth, float *to) {",
                self._pack_a(),
            ),
            Function(
                f"static inline void pack_b_{number}(const Call &c{batch}, const int64_t n0, const int64_t k0,"
                " const int64_t depth, float *to) {",
                self._pack_b(),
            ),
            Function(
                f"static inline void finish_{number}(const Call &c{batch}, const int64_t row0, const int64_t count,"
                " const int64_t n0, const int64_t n1, const float *sums) {",
                self._finish(),
            ),
            Function(
                f"static __attribute__((noinline)) void region_{number}(const Call &c) {{", self._driver(number, passed)
            ),
        ]

    # Packing

    def _pack_a(self) -> list[str]:
        """A tile: rows row0 .. row0+count-1, then zeros up to kMr, as [k][row]."""
        depth = self.depth[0].name

        def written(count: str) -> list[str]:
            scope = Scope(frozenset({*row.loops, depth}))
            writer = Code([outer, row, scope], Lanes(depth, count), {}, self._uses, self._numbers)
            name = writer.value(self.a)
            return [
                *scope.lines,
                "float part[W];",
                f"V::store(part, {name});",
                f"for (int64_t q = 0; q < {count or 'W'}; ++q) to[(k + q) * kMr + i] = part[q];",
            ]

        outer = Scope(frozenset(loop.name for loop in self.batch))
        row = Scope(frozenset({*outer.loops, *(loop.name for loop in self.rows)}))
        whole, rest = written(""), written("n")
        return [
            *outer.lines,
            "for (int64_t i = 0; i < kMr; ++i) {",
            "if (i >= count) {",
            "for (int64_t k = 0; k < depth; ++k) to[k * kMr + i] = 0.0f;",
            "continue;",
            "}",
            *self._row_of("row0 + i"),
            *row.lines,
            "int64_t k = 0;",
            "for (; k + W <= depth; k += W) {",
            "const int64_t j = k0 + k;",
            *whole,
            "}",
            "if (k < depth) {",
            "const int64_t j = k0 + k, n = depth - k;",
            *rest,
            "}",
            "}",
        ]

    def _pack_b(self) -> list[str]:
        """A panel: columns n0 .. n0+kNr-1, as [k][column]; what stands beyond the last column is never looked at."""
        across = self.columns[0].name
        return self._panel_along_k(across) if self._b_lies_along_k() else self._panel_along_n(across)

    def _panel_along_n(self, across: str) -> list[str]:
        depth = self.depth[0].name
        outer = Scope(frozenset(loop.name for loop in self.batch))
        line = Scope(outer.loops | {depth})

        def written(count: str) -> list[str]:
            scope = Scope(line.loops | {across})
            writer = Code([outer, line, scope], Lanes(across, count), {}, self._uses, self._numbers)
            name = writer.value(self.b)
            return [*scope.lines, f"V::store(to + k * kNr + q, {name});"]

        whole, rest = written(""), written("n")
        return [
            *outer.lines,
            "for (int64_t k = 0; k < depth; ++k) {",
            f"const int64_t {depth} = k0 + k;",
            f"(void){depth};",
            *line.lines,
            "for (int64_t q = 0; q < kNr; q += W) {",
            f"const int64_t j = n0 + q, n = {self.columns[0].text} - j;",
            "if (n >= W) {",
            *whole,
            "} else if (n > 0) {",
            *rest,
            "}",
            "}",
            "}",
        ]

    def _panel_along_k(self, across: str) -> list[str]:
        depth = self.depth[0].name
        outer = Scope(frozenset(loop.name for loop in self.batch))
        line = Scope(outer.loops | {across})

        def written(count: str) -> list[str]:
            scope = Scope(line.loops | {depth})
            writer = Code([outer, line, scope], Lanes(depth, count), {}, self._uses, self._numbers)
            name = writer.value(self.b)
            return [*scope.lines, f"row[l] = {name};"]

        whole, rest = written(""), written("n")
        return [
            *outer.lines,
            "for (int64_t q = 0; q < kNr; q += W) {",
            "for (int64_t k = 0; k < depth; k += W) {",
            "const int64_t n = depth - k < W ? depth - k : W, j = k0 + k;",
            "F row[W];",
            "#pragma GCC unroll 16",
            "for (int64_t l = 0; l < W; ++l) {",
            f"const int64_t {across} = n0 + q + l;",
            f"if ({across} >= {self.columns[0].text}) {{",
            "row[l] = V::splat(0.0f);",
            "continue;",
            "}",
            *line.lines,
            "if (n == W) {",
            *whole,
            "} else {",
            *rest,
            "}",
            "}",
            "V::transpose(row);",
            "if (n == W) {",
            "#pragma GCC unroll 16",
            "for (int64_t l = 0; l < W; ++l) V::store(to + (k + l) * kNr + q, row[l]);",
            "} else {",
            "for (int64_t l = 0; l < n; ++l) V::store(to + (k + l) * kNr + q, row[l]);",
            "}",
            "}",
            "}",
        ]

    def _b_lies_along_k(self) -> bool:
        read = [n.address for n in self.b.below() if n.address is not None]

        def apart(loop: Loop) -> int:
            return sum(at.along(loop.name) not in ((), ((UNIT, 1),)) for at in read)

        return apart(self.depth[0]) < apart(self.columns[0])

    # The rest

    def _finish(self) -> list[str]:
        """Sums of rows row0 .. row0+count-1 and columns n0 .. n1-1, at most kMr x kNr, into memory."""
        across = self.columns[0].name
        outer = Scope(frozenset(loop.name for loop in self.batch))
        row = Scope(outer.loops | {loop.name for loop in self.rows})
        own = next((n for t in self.targets for n in t.node.below() if n.held), None)
        held = {own: "V::load(sum + (j - n0))"} if own is not None else {}

        def written(count: str) -> list[str]:
            scope = Scope(row.loops | {across})
            writer = Code([outer, row, scope], Lanes(across, count), held, self._uses, self._numbers)
            for target in self.targets:
                name = writer.value(target.node)
                scope.lines.append(writer.store(target.view, target.address, name, target.view.place is Place.OUTPUT))
            return scope.lines

        whole, rest = written(""), written("n")
        return [
            *outer.lines,
            "for (int64_t i = 0; i < count; ++i) {",
            *self._row_of("row0 + i"),
            "const float *const sum = sums + i * kNr;",
            *row.lines,
            "int64_t j = n0;",
            "for (; j + W <= n1; j += W) {",
            *whole,
            "}",
            "if (j < n1) {",
            "const int64_t n = n1 - j;",
            *rest,
            "}",
            "}",
        ]

    def _row_of(self, flat: str) -> list[str]:
        return [f"int64_t rest = {flat};", *decoded("rest", self.rows), "(void)rest;"]

    def _driver(self, number: int, passed: str) -> list[str]:
        rows = " * ".join(["int64_t{1}", *(loop.text for loop in self.rows)])
        batches = " * ".join(["int64_t{1}", *(loop.text for loop in self.batch)])
        columns = self.columns[0].text
        shared = (
            [
                "float *const packed = c.packed;",
                "const int64_t panels = (columns + kNr - 1) / kNr, last_panel = panels * (c.thread + 1) / c.threads;",
                "for (int64_t p = panels * c.thread / c.threads; p < last_panel; ++p)",
                f"    pack_b_{number}(c, p * kNr, 0, kDepth, packed + p * kNr * kDepth);",
                "kf_barrier(c.launch);",
            ]
            if self.shared
            else []
        )
        return [
            f"constexpr int64_t kDepth = {self.k};",
            f"const int64_t rows = {rows}, columns = {columns}, batches = {batches};",
            *(["{% if pack == 'shared' %}", *shared, "{% endif %}"] if self.shared else []),
            "int64_t some_rows = up(rows < kRows ? rows : kRows, kMr);",
            "int64_t some_columns = up(columns < kColumns ? columns : kColumns, kNr);",
            "int64_t row_parts, column_parts, tasks;",
            "for (;;) {",
            "row_parts = (rows + some_rows - 1) / some_rows;",
            "column_parts = (columns + some_columns - 1) / some_columns;",
            "tasks = batches * row_parts * column_parts;",
            "if (tasks >= 2 * c.threads || c.threads == 1) break;",
            "if (some_columns > 4 * kNr || (some_rows <= kMr && some_columns > kNr))",
            "    some_columns = up(some_columns / 2, kNr);",
            "else if (some_rows > kMr) some_rows = up(some_rows / 2, kMr);",
            "else break;",
            "}",
            "float *const tiles = c.area, *const panels_own = tiles + kRows * kBlock;",
            "float *const waiting = panels_own + kOwn;",
            "alignas(64) float tile[kMr * kNr];",
            "const int64_t end = tasks * (c.thread + 1) / c.threads;",
            "for (int64_t task = tasks * c.thread / c.threads; task < end; ++task) {",
            "int64_t rest = task;",
            "const int64_t row_first = rest % row_parts * some_rows; rest /= row_parts;",
            "const int64_t column_first = rest % column_parts * some_columns; rest /= column_parts;",
            *decoded("rest", self.batch),
            "(void)rest;",
            "const int64_t row_end = row_first + some_rows < rows ? row_first + some_rows : rows;",
            "const int64_t column_end = column_first + some_columns < columns ? column_first + some_columns : columns;",
            "for (int64_t k0 = 0; k0 < kDepth; k0 += kBlock) {",
            "const int64_t depth = k0 + kBlock < kDepth ? kBlock : kDepth - k0;",
            "for (int64_t r = row_first; r < row_end; r += kMr)",
            f"    pack_a_{number}(c{passed}, r, row_end - r < kMr ? row_end - r : kMr, k0, depth,"
            " tiles + (r - row_first) * depth);",
            *self._panels(number, passed),
            "const int64_t count = row_end - r < kMr ? row_end - r : kMr;",
            "float *const sums = kDepth <= kBlock ? tile :",
            "    waiting + ((n - column_first) * some_rows + (r - row_first) * kNr);",
            "micro(count, tiles + (r - row_first) * depth, panel, depth, sums, k0 > 0);",
            "if (k0 + depth == kDepth)",
            f"    finish_{number}(c{passed}, r, count, n, n + kNr < columns ? n + kNr : columns, sums);",
            "}",
            "}",
            "}",
            "}",
        ]

    def _panels(self, number: int, passed: str) -> list[str]:
        """The loops over panels and tiles, and ``panel``: panel by panel, each packed when its turn comes, or tile by
        tile, which writes rows as they lie and needs all panels of the task at hand."""
        by_panel = "for (int64_t n = column_first; n < column_end; n += kNr) {"
        by_tile = "for (int64_t r = row_first; r < row_end; r += kMr) {"
        shared = "const float *const panel = packed + n * kDepth + k0 * kNr;"
        at = "panels_own + (n - column_first) * depth"
        own_at_once = [
            "{% if order == 'tiles' %}",
            by_panel.removesuffix(" {"),
            f"    pack_b_{number}(c{passed}, n, k0, depth, {at});",
            by_tile,
            by_panel,
            f"const float *const panel = {at};",
            "{% else %}",
            by_panel,
            "float *const panel = panels_own;",
            f"pack_b_{number}(c{passed}, n, k0, depth, panel);",
            by_tile,
            "{% endif %}",
        ]
        if not self.shared:
            return own_at_once
        either = ["{% if order == 'tiles' %}", by_tile, by_panel, "{% else %}", by_panel, by_tile, "{% endif %}"]
        return ["{% if pack == 'shared' %}", *either, shared, "{% else %}", *own_at_once, "{% endif %}"]

    @property
    def packed_floats(self) -> str:
        """C++ of what packing B as a whole takes."""
        return f"up({self.n}, kNr) * {self.k}" if self.shared else "0"

    def areas(self) -> str:
        """C++ of the floats that a thread needs."""
        waiting = f"({self.k} <= kBlock ? 0 : kRows * kColumns)"
        return f"kRows * kBlock + kOwn + {waiting}"
