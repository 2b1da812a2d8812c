"""Expressions of template headers (``applies``, ``when``, ``constraints``): a small, loop-free part of Jinja.

Headers may come from anybody, and expressions are evaluated in this process for every point of a search space. So only
names, constants, arithmetic, comparisons and a few filters are allowed; nothing that loops, calls or grows text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, nodes
from jinja2.sandbox import SandboxedEnvironment

from kforge.backends.features import KNOWN

_NODES = (nodes.Name, nodes.Const, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos,
          nodes.Add, nodes.Sub, nodes.Mul, nodes.FloorDiv, nodes.Div, nodes.Mod, nodes.CondExpr, nodes.List,
          nodes.Tuple, nodes.Filter, nodes.Getattr)
_FILTERS = frozenset({"min", "max", "abs", "int"})
_MAX_LENGTH = 500


class ExpressionError(ValueError):
    """The expression is outside the allowed part, names something unknown, or cannot be evaluated."""


class _Environment(SandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise ExpressionError(f"'{operator}' takes numbers")
        return super().call_binop(context, operator, left, right)


_ENV = _Environment(undefined=StrictUndefined)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> tuple[Callable[..., Any], frozenset[str]]:
    if len(text) > _MAX_LENGTH:
        raise ExpressionError(f"longer than {_MAX_LENGTH} characters")
    try:
        body = _ENV.parse("{{ " + text + " }}").body
        if len(body) != 1 or not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1:
            raise ExpressionError("not one expression")
        used = set()
        for node in [body[0].nodes[0], *body[0].nodes[0].find_all(nodes.Node)]:
            if not isinstance(node, _NODES) or (isinstance(node, nodes.Filter) and node.name not in _FILTERS):
                raise ExpressionError(f"'{type(node).__name__.lower()}' is not allowed here")
            if isinstance(node, nodes.Getattr) and not (isinstance(node.node, nodes.Name) and node.node.name == "fmt"):
                raise ExpressionError("only fmt has fields")
            if isinstance(node, nodes.Name):
                used.add(node.name)
        return _ENV.compile_expression(text, undefined_to_none=False), frozenset(used)
    except TemplateSyntaxError as error:
        raise ExpressionError(str(error.message)) from None
    except (RecursionError, SyntaxError):  # the latter of Python, which limits parentheses
        raise ExpressionError("nested too deeply") from None


def names(text: str) -> frozenset[str]:
    """Names that the expression uses. Raises ExpressionError when it is not allowed."""
    return _compiled(text)[1]


def holds(text: str, values: Mapping[str, Any], features: frozenset[str]) -> bool:
    """Truth of the expression; a feature's name is true when the target has it. Raises ExpressionError."""
    call, used = _compiled(text)
    known = {**{name: name in features for name in used & KNOWN}, **values}
    try:
        return bool(call(**known))
    except UndefinedError as error:
        raise ExpressionError(str(error.message)) from None
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ExpressionError(str(error)) from None
