"""A problem file: its module, sizes replaced, and what is called with which arguments. Runs in the confined child."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kforge.importing.failures import ImportFailure

_NAME = "problem"
_LARGEST = 1 << 40


@dataclass(frozen=True)
class ExampleInput:
    """An argument that the command line names."""

    name: str
    shape: tuple[int, ...]


class Source:
    """Text of a problem file. ``sizes``: its whole numbers above 1, which stand under a name at the top level."""

    def __init__(self, text: str, label: str) -> None:
        self.label = label
        try:
            self._tree = ast.parse(text, label)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ImportFailure(f"{label} is not Python: {error}") from None
        linecache.cache[label] = (len(text), None, text.splitlines(keepends=True), label)
        self.sizes = {name: value for name, value in map(_size, self._tree.body) if value > 1}

    def executed(self, sizes: Mapping[str, int]) -> types.ModuleType:
        """The module, with these sizes in place of its own."""
        tree = ast.Module([_replaced(statement, sizes) for statement in self._tree.body], [])
        module = types.ModuleType(_NAME)
        module.__file__ = self.label
        sys.modules[_NAME] = module  # pickling and dataclasses look there
        exec(compile(ast.fix_missing_locations(tree), self.label, "exec"), module.__dict__)
        return module


def _size(statement: ast.stmt) -> tuple[str, int]:
    """Name and value of ``NAME = whole number``; 0 for anything else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, _number(statement.value)
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
        return statement.target.id, _number(statement.value)
    return "", 0


def _number(node: ast.expr) -> int:
    """Value of a literal or of sums and products of literals; 0 for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int and 0 <= node.value < _LARGEST else 0
    if not isinstance(node, ast.BinOp) or not (left := _number(node.left)) or not (right := _number(node.right)):
        return 0
    match node.op:
        case ast.Add():
            made = left + right
        case ast.Mult():
            made = left * right
        case ast.FloorDiv():
            made = left // right
        case ast.Pow():
            made = left**right if right <= 40 else 0
        case _:
            made = 0
    return made if made < _LARGEST else 0


def _replaced(statement: ast.stmt, sizes: Mapping[str, int]) -> ast.stmt:
    name, value = _size(statement)
    if not value or name not in sizes:
        return statement
    made = ast.Assign([ast.Name(name, ast.Store())], ast.Constant(sizes[name]))
    return ast.copy_location(made, statement)


@dataclass(frozen=True)
class Call:
    """A module in evaluation mode, and positional arguments for it."""

    module: Any
    args: tuple[Any, ...]


def call_of(module: types.ModuleType, function: str, inputs: tuple[ExampleInput, ...], lead: int) -> Call:
    """What is imported, made in torch's present mode (fake or real). ``lead``: by what leading dimensions of arguments
    are divided; then the values of the arguments are not the file's own.

    Raises ImportFailure for a file that lacks a part, or whose part fails.
    """
    import torch

    called = _function(module, function) if function else _model(module)
    if inputs:
        args = tuple(torch.randn(item.shape) for item in inputs)
    else:
        args = tuple(_attempt(_member(module, "get_inputs", "or give --inputs"), "get_inputs()"))
    if lead > 1:
        args = tuple(_cut(arg, lead, _leading(args)) for arg in args)
    if not isinstance(called, torch.nn.Module):
        called = _wrapped(called, len(args))
    return Call(called.eval(), args)


def _leading(args: tuple[Any, ...]) -> int:
    import torch

    return next((arg.shape[0] for arg in args if isinstance(arg, torch.Tensor) and arg.dim()), 1)


def _cut(arg: Any, lead: int, leading: int) -> Any:
    import torch

    if not isinstance(arg, torch.Tensor) or not arg.dim() or arg.shape[0] != leading:
        return arg
    return torch.randn(max(1, leading // lead), *arg.shape[1:], dtype=arg.dtype)


def _member(module: types.ModuleType, name: str, otherwise: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise ImportFailure(f"{module.__file__} has no {name}: define it, {otherwise}")
    return found


def _model(module: types.ModuleType) -> Any:
    import torch

    made = _member(module, "Model", "or name a function as FILE:FUNCTION")
    given = _attempt(getattr(module, "get_init_inputs", list), "get_init_inputs()")
    if not isinstance(given, list | tuple):
        raise ImportFailure("get_init_inputs() returns something other than a list")
    model = _attempt(lambda: made(*given), "Model(...)")
    if not isinstance(model, torch.nn.Module):
        raise ImportFailure("Model is no torch.nn.Module")
    return model


def _function(module: types.ModuleType, name: str) -> Any:
    found = _member(module, name, "or name another function")
    if not callable(found):
        raise ImportFailure(f"{name} of {module.__file__} cannot be called")
    return found


def _attempt(function: Any, what: str) -> Any:
    try:
        made = function()
    except (MemoryError, ImportFailure):
        raise
    except Exception as error:
        raise ImportFailure(f"{what} fails with {type(error).__name__}: {error}") from error
    if what == "get_inputs()" and not (isinstance(made, list | tuple) and made):
        raise ImportFailure("get_inputs() returns something other than a list of arguments")
    return made


def _wrapped(function: Any, count: int) -> Any:
    """A module whose forward calls the function, with arguments under its own names."""
    import torch

    try:
        named = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        named = []
    names = named[:count] if len(named) >= count else [f"x{i}" for i in range(count)]
    space: dict[str, Any] = {"_function": function}
    exec(f"def forward(_self, {', '.join(names)}):\n    return _function({', '.join(names)})", space)
    return type("Function", (torch.nn.Module,), {"forward": space["forward"]})()
