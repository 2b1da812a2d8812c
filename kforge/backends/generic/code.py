"""C++ of nodes: each is computed once, in the outermost scope in which all that it depends on is known."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kforge.backends.generic.memory import UNIT, Address, View
from kforge.backends.generic.nodes import Node
from kforge.operators.graph import Op

_CALLS = {
    Op.ABS: "abs",
    Op.EXP: "exp",
    Op.LOG: "log",
    Op.SQRT: "sqrt",
    Op.TANH: "tanh",
    Op.SIGMOID: "sigmoid",
    Op.ERF: "erf",
    Op.SIN: "sin",
    Op.COS: "cos",
    Op.MAXIMUM: "maximum",
    Op.MINIMUM: "minimum",
    Op.POW: "pow",
}
_SIGNS = {Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/"}


@dataclass(frozen=True)
class Lanes:
    """The loop that runs along a vector. ``count``: how many of its lanes are there; all when empty. ``at``: the
    variable that holds the first lane's place in the loop."""

    loop: str
    count: str = ""
    at: str = "j"


@dataclass
class Scope:
    """A block of C++ inside which the variables of ``loops`` are known, those of outer scopes included."""

    loops: frozenset[str]
    lines: list[str] = field(default_factory=list)
    names: dict[Node, str] = field(default_factory=dict)


class Code:
    """Writes nodes into ``scopes``, outermost first. ``held``: C++ of values that are at hand, by node."""

    def __init__(
        self,
        scopes: list[Scope],
        lanes: Lanes,
        held: dict[Node, str],
        uses: Mapping[Node, int],
        names: Iterable[int],
    ) -> None:
        self.scopes = scopes
        self.lanes = lanes
        self.held = held
        self.uses = uses
        self._numbers = iter(names)

    def value(self, node: Node) -> str:
        """The variable (a vector) that holds the node; lanes are equal where it does not depend on their loop."""
        if self.held.get(node, "").isidentifier():
            return self.held[node]
        for scope in self.scopes:
            if node in scope.names:
                return scope.names[node]
        scope = self.scope(node)
        text = self.held[node] if node in self.held else self._text(node)
        name = f"v{next(self._numbers)}"
        scope.lines.append(f"const F {name} = {text};")
        scope.names[node] = name
        return name

    def scope(self, node: Node) -> Scope:
        """Where the node is computed."""
        return next((scope for scope in self.scopes if node.loops <= scope.loops), self.scopes[-1])

    def place(self, at: Address) -> str:
        return at.text({self.lanes.loop: self.lanes.at})

    def store(self, view: View, at: Address, name: str, output: bool) -> str:
        """The statement that stores a vector at an address of a view; ``output``: past the caches where the call is
        large."""
        pointer = f"{view.pointer} + {self.place(at)}"
        if at.along(self.lanes.loop) == ((UNIT, 1),):
            return (
                f"V::store_first({pointer}, {self.lanes.count}, {name});"
                if self.lanes.count
                else f"put({pointer}, {name}, far);"
                if output
                else f"V::store({pointer}, {name});"
            )
        if self.lanes.loop not in at.loops:
            return f"{view.pointer}[{self.place(at)}] = {name}[0];"
        return f"V::store_apart({pointer}, {_step(at, self.lanes.loop)}, {self.lanes.count or 'W'}, {name});"

    def fused(self, node: Node, beside: Node | None = None) -> tuple[str, str] | None:
        """Two factors whose product the node is, where a sum may take it in: nobody else reads it, and it is computed
        where ``beside``, the sum, is (or in the innermost scope)."""
        factors = (node.args[0], node.args[0]) if node.op is Op.SQUARE else node.args
        here = self.scopes[-1] if beside is None else self.scope(beside)
        if (
            node.op not in (Op.MUL, Op.SQUARE)
            or self.uses.get(node, 0) > 1
            or node in self.held
            or self.scope(node) is not here
        ):
            return None
        return self.value(factors[0]), self.value(factors[1])

    def _text(self, node: Node) -> str:
        if node.address is not None and node.view is not None:
            return self._load(node.view, node.address)
        if node.op is None:
            return f"V::splat({number(node.value)})"
        if node.op is Op.WHERE:
            return self._where(*node.args)
        if node.op is Op.POW and (text := self._power(node)) is not None:
            return text
        if node.op in (Op.ADD, Op.SUB) and (text := self._sum(node)) is not None:
            return text
        args = [self.value(arg) for arg in node.args]
        first = args[0]
        if node.op in _CALLS:
            return f"V::{_CALLS[node.op]}({', '.join(args)})"
        if node.op in _SIGNS:
            return f"{first} {_SIGNS[node.op]} {args[1]}"
        match node.op:
            case Op.NEG:
                return f"-{first}"
            case Op.RSQRT:
                return f"V::splat(1.0f) / V::sqrt({first})"
            case Op.RECIPROCAL:
                return f"V::splat(1.0f) / {first}"
            case Op.SQUARE:
                return f"{first} * {first}"
            case Op.RELU:
                return f"V::maximum({first}, V::splat(0.0f))"
            case Op.LESS | Op.LESS_EQUAL:
                return f"V::select({_comparison(node.op, *args)}, V::splat(1.0f), V::splat(0.0f))"
        raise AssertionError(node.op)

    def _load(self, view: View, at: Address) -> str:
        place, along = self.place(at), at.along(self.lanes.loop)
        if not along:
            return f"V::splat({view.pointer}[{place}])"
        if along == ((UNIT, 1),):
            return (
                f"V::load_first({view.pointer} + {place}, {self.lanes.count})"
                if self.lanes.count
                else f"V::load({view.pointer} + {place})"
            )
        return f"V::load_apart({view.pointer} + {place}, {_step(at, self.lanes.loop)}, {self.lanes.count or 'W'})"

    def _where(self, condition: Node, yes: Node, no: Node) -> str:
        if condition.op in (Op.LESS, Op.LESS_EQUAL) and condition not in self.held:
            test = _comparison(condition.op, *(self.value(arg) for arg in condition.args))
        else:
            test = f"{self.value(condition)} != V::splat(0.0f)"
        return f"V::select({test}, {self.value(yes)}, {self.value(no)})"

    def _sum(self, node: Node) -> str | None:
        a, b = node.args
        if (factors := self.fused(a, node)) is not None:
            sign = "-" if node.op is Op.SUB else ""
            return f"V::madd({factors[0]}, {factors[1]}, {sign}{self.value(b)})"
        if node.op is Op.ADD and (factors := self.fused(b, node)) is not None:
            return f"V::madd({factors[0]}, {factors[1]}, {self.value(a)})"
        return None

    def _power(self, node: Node) -> str | None:
        base, exponent = node.args
        if exponent.op is not None or exponent.loops or exponent.held or exponent.view is not None:
            return None
        x = self.value(base)
        root = (
            f"V::select({x} == V::splat(-__builtin_inff()), V::splat(__builtin_inff()), V::sqrt({x}) + V::splat(0.0f))"
        )
        known = {
            1.0: x,
            2.0: f"{x} * {x}",
            3.0: f"{x} * {x} * {x}",
            4.0: f"({x} * {x}) * ({x} * {x})",
            -1.0: f"V::splat(1.0f) / {x}",
            0.5: root,
            -0.5: f"V::splat(1.0f) / {root}",
        }
        return known.get(exponent.value)


def uses(targets: Iterable[Node]) -> Counter[Node]:
    """How often each node is read; a target once more."""
    found: Counter[Node] = Counter()
    seen: dict[Node, None] = {}
    for target in targets:
        found[target] += 1
        seen |= target.below()
    for node in seen:
        found.update(node.args)
    return found


def number(value: float) -> str:
    """C++ of the float32 nearest to a number."""
    if math.isnan(value):
        return '__builtin_nanf("")'
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        rounded = math.copysign(math.inf, value)
    if math.isinf(rounded):
        return "__builtin_inff()" if rounded > 0 else "-__builtin_inff()"
    return f"{float(rounded).hex()}f"


def indented(lines: Iterable[str]) -> str:
    """Lines of C++ and Jinja, indented by their braces, and by little, as a template is bounded. Of alternatives each
    begins where the first one did."""
    made, depth = [], 0
    begun: list[int] = []
    for line in lines:
        text = line.strip()
        if text.startswith("{% if"):
            begun.append(depth)
        elif text.startswith(("{% el", "{% endif")):
            depth = begun[-1] if text.startswith("{% el") else depth
            begun = begun[:-1] if text.startswith("{% endif") else begun
        if text.startswith(("{%", "#")) or not text:
            made.append(text)
            continue
        balance = text.count("{") - text.count("}")
        made.append("  " * (depth - text.startswith("}")) + text)
        depth += balance
    return "\n".join(made)


def _comparison(op: Op, a: str, b: str) -> str:
    return f"{a} {'<' if op is Op.LESS else '<='} {b}"


def _step(at: Address, loop: str) -> str:
    return " + ".join(f"{c}*{symbol}" if symbol else str(c) for symbol, c in at.along(loop))
