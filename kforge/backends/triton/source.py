"""What a Triton source may consist of: constants and ``@triton.jit`` functions, nothing that does anything by itself.

The sandbox holds whatever a source does; this gate keeps it from being other than it looks, such as a kernel that
computes one thing when it is interpreted and another when it is compiled, and turns away what the binary may not
contain. It looks at the text only and runs in kforge's own process.
"""

from __future__ import annotations

import ast

from kforge.core.trial import Failure, FailureClass

_MOST_BYTES = 1 << 20
_HEAD = {"import triton", "import triton.language as tl"}
_EXPRESSIONS = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.operator, ast.unaryop, ast.expr_context, ast.Tuple,
                ast.List)
# Attributes that lead out of the language: they print, stop, look around, or reach for code or state of others.
_ATTRIBUTES = frozenset((
    "device_print", "static_print", "device_assert", "inline_asm_elementwise", "map_elementwise", "extra", "core",
    "semantic", "standard", "target_info", "globaltimer", "smid", "handle", "runtime", "builder", "fn", "run",
))
_OF_TRITON = frozenset(("jit", "cdiv", "next_power_of_2"))
_BUILTINS = frozenset(("range", "min", "max", "abs", "len", "int", "float", "bool", "tl", "triton"))
_KEYWORDS = frozenset(("_semantic", "_builder", "_generator"))
_STATEMENTS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.AsyncFunctionDef, ast.Lambda, ast.Global, ast.Nonlocal,
               ast.Try, ast.With, ast.Raise, ast.Delete, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr,
               ast.GeneratorExp, ast.DictComp, ast.SetComp, ast.ListComp, ast.Starred, ast.JoinedStr, ast.Match)


def admit(text: str) -> Failure | None:
    """None where the source is of that kind, else ADMISSION, or COMPILE for what is no Python, with the line."""
    if len(text.encode(errors="replace")) > _MOST_BYTES:
        return _refused(0, f"it is longer than {_MOST_BYTES >> 10} KiB")
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        said = getattr(error, "msg", None) or type(error).__name__
        return Failure(FailureClass.COMPILE, f"kernel.py:{line}: {said}", _line(text, line))
    known = {name.id for node in module.body if isinstance(node, ast.Assign) for name in node.targets
             if isinstance(name, ast.Name)}
    known |= {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    try:
        for statement in module.body:
            if (why := _why_not(statement, frozenset(known))) is not None:
                return why
    except RecursionError:
        return _refused(0, "it is nested too deeply")
    return None


def _why_not(node: ast.stmt, known: frozenset[str]) -> Failure | None:
    if isinstance(node, ast.Import):
        return None if ast.unparse(node) in _HEAD else _refused(node.lineno, f"it says '{ast.unparse(node)}'")
    if isinstance(node, ast.Assign):
        return _why_no_constant(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return None  # a docstring
    if not isinstance(node, ast.FunctionDef):
        what = ast.unparse(node).partition("\n")[0][:60]
        return _refused(node.lineno, f"a module has imports, constants and functions, not '{what}'")
    if [ast.unparse(decorator) for decorator in node.decorator_list] != ["triton.jit"]:
        return _refused(node.lineno, f"{node.name} is not decorated with @triton.jit alone")
    for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
        if not _is_plain(default):
            return _refused(node.lineno, f"a default of {node.name} is not arithmetic of literals and constants")
    for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if arg.annotation is not None and ast.unparse(arg.annotation) != "tl.constexpr":
            return _refused(node.lineno, f"{arg.arg} of {node.name} is annotated, but not with tl.constexpr")
    if node.args.vararg or node.args.kwarg or node.returns is not None:
        return _refused(node.lineno, f"{node.name} takes any number of arguments, or says what it returns")
    return _why_not_inside(node, known)


def _why_no_constant(node: ast.Assign) -> Failure | None:
    value = node.value
    if not (len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and isinstance(value, ast.Call)
            and ast.unparse(value.func) == "tl.constexpr" and len(value.args) == 1 and not value.keywords):
        return _refused(node.lineno, "a constant is NAME = tl.constexpr(...)")
    if node.targets[0].id in _BUILTINS or not _is_plain(value.args[0]):
        return _refused(node.lineno, "a constant is arithmetic of literals and other constants, or a type such as "
                        "tl.float16")
    return None


def _is_plain(value: ast.expr) -> bool:
    types = [n for n in ast.walk(value) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
             and n.value.id == "tl" and n.attr.startswith(("int", "uint", "float", "bfloat"))]
    return all(node in types or isinstance(node, _EXPRESSIONS) for node in ast.walk(value))


def _why_not_inside(function: ast.FunctionDef, known: frozenset[str]) -> Failure | None:
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    if clash := sorted(own & _BUILTINS):
        return _refused(function.lineno, f"{function.name} gives '{clash[0]}' another meaning")
    for node in ast.walk(function):
        line = getattr(node, "lineno", function.lineno)
        if isinstance(node, _STATEMENTS) or (isinstance(node, ast.FunctionDef) and node is not function):
            return _refused(line, f"{type(node).__name__} has no place in {function.name}")
        if isinstance(node, ast.Name) and node.id not in own | known | _BUILTINS:
            return _refused(line, f"'{node.id}' is neither a value of {function.name} nor a constant or function of "
                            "the module")
        if isinstance(node, ast.Attribute) and (
                node.attr.startswith("_") or node.attr in _ATTRIBUTES
                or (isinstance(node.value, ast.Name) and node.value.id == "triton" and node.attr not in _OF_TRITON)):
            return _refused(line, f"'{ast.unparse(node)[-60:]}' is not for kernels")
        if isinstance(node, ast.keyword) and node.arg in _KEYWORDS:
            return _refused(line, f"'{node.arg}' is not for kernels")
    return None


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _refused(line: int, why: str) -> Failure:
    return Failure(FailureClass.ADMISSION, f"kernel.py:{line}: {why} (docs/triton.md says what a source may be)")
