"""An exported program, torch's graph of core operations, as a graph of ours."""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import Node

import kforge.importing.aten_views  # noqa: F401  registers its rules
from kforge.importing.aten import RULES
from kforge.importing.builder import Builder, Value
from kforge.importing.failures import NotDynamic, Unsupported
from kforge.importing.masks import levels
from kforge.operators.graph import AXIS, Extent, Given, Graph, Kind, Shape

KEPT_WHOLE = ("linear.default", "matmul.default", "scaled_dot_product_attention.default")  # never taken apart by torch
_FIXED = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_PARAMETERS = (InputKind.PARAMETER, *_FIXED)
_CHANGES = {OutputKind.USER_INPUT_MUTATION: "argument", OutputKind.BUFFER_MUTATION: "buffer",
            OutputKind.PARAMETER_MUTATION: "parameter"}
_LARGE_CONSTANT = 1 << 20  # elements of what was made while tracing
_NO_NAMES = {"scratch", "out", "int", "float", "double", "char", "bool", "auto", "const", "new", "delete", "this",
             "default", "switch", "case", "template", "typename", "operator", "register", "static", "struct", "union",
             "void", "long", "short", "signed", "unsigned", "inline", "extern", "namespace", "using", "do", "goto"}


@dataclass(frozen=True)
class Lowered:
    """A program's graph; the program's values of what is given, by name; of arguments the place in its flat inputs."""

    graph: Graph
    tensors: dict[str, torch.Tensor]
    places: dict[str, int]


def lowered(program: ExportedProgram) -> Lowered:
    """Raises Unsupported that names what no graph can say, NotDynamic where only the batch stands in the way."""
    lowering = _Lowering(program)
    graph = lowering.graph()
    return Lowered(graph, {given.name: lowering.tensors[given.name] for given in graph.given}, lowering.places)


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """``mean``, ``spread`` and ``positive`` of a ``Given``; those of a standard normal where there are no values."""
    if tensor.numel() == 0 or tensor.is_meta or not torch.isfinite(tensor).all():
        return {}
    wide = tensor.detach().double()
    spread = float(wide.std(correction=0)) if wide.numel() > 1 else 0.0
    return {"mean": float(wide.mean()), "spread": spread, "positive": bool(wide.min() >= 0)}


class _Lowering:
    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._builder = Builder()
        self._known: dict[Node, Any] = {}
        self._names: set[str] = set()
        self._symbol: str | None = None
        self.tensors: dict[str, torch.Tensor] = {}  # what is given, by name
        self.places: dict[str, int] = {}  # of arguments, among the inputs

    def graph(self) -> Graph:
        """Arguments come first, then parameters, each in the order of the function."""
        signature = self._program.graph_signature
        for spec in signature.output_specs:
            if what := _CHANGES.get(spec.kind):
                raise Unsupported(f"it changes its {what} {spec.target} in place, and an operator does nothing but "
                                  "return: let it change a clone() of that")
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        placeholders = [node for node in self._program.graph.nodes if node.op == "placeholder"]
        for parameters in (False, True):
            for node in placeholders:
                if (specs[node.name].kind in _PARAMETERS) == parameters:
                    self._known[node] = self._given(node, specs[node.name])
        for node in self._program.graph.nodes:
            if node.op == "call_function":
                self._known[node] = self._call(node)
        made = {node.name: node for node in self._program.graph.nodes}
        outputs = []
        for spec in signature.output_specs:
            value = self._known[made[spec.arg.name]] if isinstance(spec.arg, TensorArgument) else None
            if not isinstance(value, Value) or value.truth:
                raise Unsupported("it returns something other than float32 tensors")
            outputs.append(value)
        return self._builder.graph(outputs)

    def _given(self, node: Node, spec: Any) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value  # a number, which the trace has taken in already
        parameter = spec.kind in _PARAMETERS
        tensor = self._tensor(spec) if parameter else self._example(node)
        what = f"the {'parameter' if parameter else 'argument'} {spec.target or node.name}"
        if value.dtype is not torch.float32:
            if tensor is not None and parameter and tensor.numel() == 1:
                return float(tensor)
            raise Unsupported(f"{what} is {_dtype(value)}; only float32 can be imported")
        if tensor is not None and parameter and tensor.numel() == 1 and spec.kind is not InputKind.PARAMETER:
            return self._builder.broadcast(self._builder.number(float(tensor)), self._shape(value))
        if spec.kind is InputKind.CONSTANT_TENSOR and value.numel() > _LARGE_CONSTANT:
            raise Unsupported(f"it makes a constant of {value.numel()} elements")
        two = levels(tensor) if tensor is not None and spec.kind in _FIXED else None
        facts = two.facts if two else statistics(tensor) if tensor is not None else {}
        kind = Kind.PARAMETER if parameter else Kind.ARGUMENT
        name = self._name(spec.target or node.name)
        if tensor is not None:
            self.tensors[name] = tensor
        if not parameter:
            self.places[name] = self._place(node)
        given = self._builder.give(Given(name, self._shape(value), kind, **facts))
        return two.of(self._builder, given) if two else given

    def _tensor(self, spec: Any) -> torch.Tensor | None:
        held: Mapping[str, Any] = {**self._program.constants, **self._program.state_dict}
        found = held.get(spec.target)
        return found if isinstance(found, torch.Tensor) else None

    def _example(self, node: Node) -> torch.Tensor | None:
        """The argument that the export was made with."""
        args, kwargs = self._program.example_inputs or ((), {})
        flat, _ = torch.utils._pytree.tree_flatten((args, kwargs))
        at = self._place(node)
        return flat[at] if at < len(flat) and isinstance(flat[at], torch.Tensor) else None

    def _place(self, node: Node) -> int:
        specs = self._program.graph_signature.input_specs
        return [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT].index(node.name)

    def _name(self, text: str) -> str:
        name = re.sub(r"[^a-z0-9_]", "_", text.lower()).strip("_")[:40] or "x"
        if not name[0].isalpha() or name in _NO_NAMES or keyword.iskeyword(name) or re.fullmatch(r"(v|out)\d+", name):
            name = f"given_{name}"
        unique, i = name, 2
        while unique in self._names:
            unique, i = f"{name}_{i}", i + 1
        self._names.add(unique)
        return unique

    def _shape(self, tensor: torch.Tensor) -> Shape:
        shape = tuple(self._extent(extent) for extent in tensor.shape)
        if 0 in shape:
            raise Unsupported(f"it has an empty tensor, of the shape {shape}")
        return shape

    def _extent(self, extent: Any) -> Extent:
        """B for the one symbol that the export has; what is computed from it cannot be said."""
        if isinstance(extent, int):
            return extent
        expression = extent.node.expr
        if expression.is_number:
            return int(expression)
        if not expression.is_symbol or self._symbol not in (None, str(expression)):
            raise NotDynamic(f"an extent is {expression}")
        self._symbol = str(expression)
        return AXIS

    def _call(self, node: Node) -> Any:
        name = getattr(node.target, "__name__", str(node.target))
        if name == "getitem":
            return self._known[node.args[0]][node.args[1]]  # type: ignore[index]
        value = node.meta.get("val")
        if isinstance(value, int | float | torch.SymInt):
            return value if isinstance(value, int | float) else self._extent(value)
        if value is None:  # an assertion
            return None
        dotted = str(node.target).removeprefix("aten.")
        rule = RULES.get(dotted) if str(node.target).startswith("aten.") else None
        if rule is None:
            raise Unsupported(f"it uses {str(node.target).removesuffix('.default')}, which cannot be imported")
        if isinstance(value, torch.Tensor) and value.dtype not in (torch.float32, torch.bool):
            raise Unsupported(f"its {str(node.target).removesuffix('.default')} makes {_dtype(value)}; "
                              "only float32 can be imported")
        args = [self._argument(a) for a in node.args]
        kwargs = {key: self._argument(a) for key, a in node.kwargs.items() if key not in _PLACEMENT}
        try:
            made = rule(self._builder, *args, **kwargs)
        except (TypeError, AttributeError, IndexError, ValueError, ArithmeticError) as error:
            raise Unsupported(f"its {dotted} has a form that cannot be imported ({error})") from None
        return self._whole(made, value)

    def _whole(self, made: Any, value: Any) -> Any:
        """In the shape that torch gives it, where a number alone is broadcast; as bool 0 and 1."""
        truth = isinstance(value, torch.Tensor) and value.dtype is torch.bool
        if truth and isinstance(made, Value | int | float):
            made = self._builder.mask(made)
        if not isinstance(made, Value) or not isinstance(value, torch.Tensor):
            return made
        return dataclasses.replace(self._builder.broadcast(made, self._shape(value)), truth=truth)

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self._known[argument]
        if isinstance(argument, list | tuple):
            return [self._argument(item) for item in argument]
        return argument


_PLACEMENT = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "requires_grad")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
