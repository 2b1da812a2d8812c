"""An imported function's graph as a text that a kernel engineer reads: a line for each value, in numpy's notation."""

from __future__ import annotations

from kforge.operators.graph import Graph, Op, Shape, Step

_INFIX = {Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/", Op.POW: "**", Op.LESS: "<", Op.LESS_EQUAL: "<=",
          Op.MATMUL: "@"}
_NAMES = {Op.BROADCAST: "broadcast_to", Op.RESHAPE: "reshape"}


def pseudo_code(graph: Graph) -> str:
    """What is given, a line for each step with the shape of its value, and what is returned."""
    given = [f"{value.name}: f32{_shape(value.shape)}  # {value.kind.value}" for value in graph.given]
    steps = [f"{step.name} = {_expression(step, graph)}  # {_shape(step.shape)}" for step in graph.steps]
    return "\n".join([*given, *steps, f"return {', '.join(graph.outputs)}"])


def _shape(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _tuple(values: tuple) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _expression(step: Step, graph: Graph) -> str:
    inputs = step.inputs
    match step.op:
        case Op.SCALAR:
            return repr(step.value)
        case Op.NEG:
            return f"-{inputs[0]}"
        case op if op in _INFIX:
            return f"{inputs[0]} {_INFIX[op]} {inputs[1]}"
        case Op.SUM | Op.MAX | Op.MIN:
            return f"{step.op.value}({inputs[0]}, axis={_tuple(step.dims)}, keepdims=True)"
        case Op.PERMUTE:
            return f"transpose({inputs[0]}, {_tuple(step.dims)})"
        case Op.RESHAPE | Op.BROADCAST:
            return f"{_NAMES[step.op]}({inputs[0]}, {_tuple(step.shape)})"
        case Op.SLICE:
            start, stop = step.bounds
            rank = len(graph.shapes[inputs[0]])
            cuts = [f"{start}:{stop}" if dim == step.dims[0] else ":" for dim in range(rank)]
            return f"{inputs[0]}[{', '.join(cuts)}]"
        case Op.CONCAT:
            return f"concatenate({_tuple(inputs)}, axis={step.dims[0]})"
    return f"{step.op.value}({', '.join(inputs)})"
