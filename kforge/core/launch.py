"""How a compiled kernel of a device language is launched: data that can be stored, checked and run without its source.

A template's header says it (``[[launch]]``); sizes are integer expressions over a problem's attributes, the template's
parameters and the operator's dynamic axes. Attributes and parameters are fixed when a candidate is made
(``constants``), axes are known when it is launched.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

_MOST_TEXT = 500
_LIMIT = 1 << 62
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max, "cdiv": lambda a, b: -(-a // b)}


class LaunchError(ValueError):
    """An expression that is outside the allowed part, names something unknown, or has no value."""


class ArgumentKind(StrEnum):
    TENSOR = "tensor"  # a pointer to its first element
    STRIDE = "stride"  # of one dimension, in elements, 64 bits
    AXIS = "axis"  # a dynamic axis, 32 bits
    SCALAR = "scalar"  # float32
    SCRATCH = "scratch"  # a pointer to bytes that hold nothing before a call; shared by the launches of a kernel


@dataclass(frozen=True)
class Argument:
    kind: ArgumentKind
    name: str  # the tensor's, axis' or scalar's in the operator's contract; "scratch"
    dimension: int = 0  # of a stride
    multiple: int = 1  # of what a stride or a pointer's address (in bytes) is one: the binary relies on it

    @property
    def text(self) -> str:
        """As headers write it."""
        return f"{self.name}.stride{self.dimension}" if self.kind is ArgumentKind.STRIDE else self.name


@dataclass(frozen=True)
class Launch:
    """One launch of one entry of a binary; a kernel is a sequence of them, each after the one before has ended.

    ``grid`` counts groups (blocks, programs) in up to three dimensions; ``block`` threads of a group, empty where the
    compiler decides (Triton: ``warps``). ``warps`` and ``shared_bytes`` are what the build found.
    """

    entry: str
    grid: tuple[str, ...]
    arguments: tuple[Argument, ...]
    block: tuple[str, ...] = ()
    scratch: str = "0"  # bytes
    constants: tuple[tuple[str, int], ...] = ()
    warps: int = 0
    shared_bytes: int = 0  # dynamic shared memory of a group

    def groups(self, axes: Mapping[str, int]) -> tuple[int, int, int]:
        """Groups in x, y and z, none below zero; 0 anywhere: there is nothing to launch. Raises LaunchError."""
        return self._three(self.grid, axes)

    def threads(self, axes: Mapping[str, int]) -> tuple[int, int, int]:
        """Threads of a group in x, y and z. Raises LaunchError."""
        return self._three(self.block, axes)

    def scratch_bytes(self, axes: Mapping[str, int]) -> int:
        return max(0, evaluate(self.scratch, {**dict(self.constants), **axes}))

    def _three(self, texts: tuple[str, ...], axes: Mapping[str, int]) -> tuple[int, int, int]:
        values = {**dict(self.constants), **axes}
        found = [max(0, evaluate(text, values)) for text in texts]
        x, y, z = (*found, *[1] * (3 - len(found)))
        return x, y, z


@lru_cache(maxsize=4096)
def parsed(text: str) -> ast.expr:
    """The expression, for those who translate it. Raises LaunchError when it is not allowed."""
    if len(text) > _MOST_TEXT:
        raise LaunchError(f"longer than {_MOST_TEXT} characters")
    try:
        body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise LaunchError(f"'{text}' is not an expression") from None
    _require(body, text)
    return body


def _require(node: ast.expr, text: str) -> None:
    inner: list[ast.expr]
    if isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int):
        inner = []
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        inner = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = [node.operand]
    elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS
          and not node.keywords and len(node.args) == 2):
        inner = node.args
    else:
        raise LaunchError(f"'{text}': integers, names, + - * // %, and min, max and cdiv of two are allowed")
    for child in inner:
        _require(child, text)


def names(text: str) -> frozenset[str]:
    """Names that the expression uses. Raises LaunchError when it is not allowed."""
    calls = {id(n.func) for n in ast.walk(parsed(text)) if isinstance(n, ast.Call)}
    return frozenset(n.id for n in ast.walk(parsed(text)) if isinstance(n, ast.Name) and id(n) not in calls)


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """The expression's value, of at most 62 bits. Raises LaunchError."""
    return _value(parsed(text), values, text)


def _value(node: ast.expr, values: Mapping[str, int], text: str) -> int:
    if isinstance(node, ast.Name):
        if node.id not in values:
            raise LaunchError(f"'{text}' names {node.id}, which is neither an attribute, a parameter nor an axis")
        found = values[node.id]
    elif isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        found = node.value
    elif isinstance(node, ast.UnaryOp):
        found = -_value(node.operand, values, text)
    elif isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        found = _apply(_CALLS[node.func.id], node.args, values, text)
    else:
        assert isinstance(node, ast.BinOp)
        found = _apply(_BINARY[type(node.op)], [node.left, node.right], values, text)
    if not -_LIMIT < found < _LIMIT:
        raise LaunchError(f"'{text}' is beyond 62 bits")
    return found


def _apply(call: Callable[..., int], inner: list[ast.expr], values: Mapping[str, int], text: str) -> int:
    try:
        return call(*(_value(child, values, text) for child in inner))
    except ZeroDivisionError:
        raise LaunchError(f"'{text}' divides by zero") from None
