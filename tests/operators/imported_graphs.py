"""Graphs written by hand, and operators of them without an import."""

from __future__ import annotations

from kforge.operators.graph import AXIS, Given, Graph, Kind, Op, Step
from kforge.operators.import_record import GraphRecord, ImportRecord
from kforge.operators.imported import Imported


def record_of(graph: Graph, name: str = "mine", batch: int = 20) -> ImportRecord:
    return ImportRecord(name=name, source="mine.py", source_hash="0" * 16, graph=GraphRecord.of(graph),
                        batch=batch if graph.dynamic else 1)


def operator_of(graph: Graph, name: str = "mine", batch: int = 20) -> Imported:
    return Imported(record_of(graph, name, batch))


def softmax(width: int) -> Graph:
    row, whole = (AXIS, 1), (AXIS, width)
    steps = (Step("m", Op.MAX, ("x",), row, dims=(1,)), Step("d", Op.SUB, ("x", "m"), whole),
             Step("e", Op.EXP, ("d",), whole), Step("s", Op.SUM, ("e",), row, dims=(1,)),
             Step("y", Op.DIV, ("e", "s"), whole))
    return Graph((Given("x", whole, Kind.ARGUMENT),), steps, ("y",))


def gemm_relu(inner: int, width: int) -> Graph:
    given = (Given("x", (AXIS, inner), Kind.ARGUMENT), Given("weight", (width, inner), Kind.PARAMETER, 0.0, 0.1),
             Given("bias", (width,), Kind.PARAMETER, 1.0, 0.0))
    steps = (Step("t", Op.PERMUTE, ("weight",), (inner, width), dims=(1, 0)),
             Step("p", Op.MATMUL, ("x", "t"), (AXIS, width)), Step("a", Op.ADD, ("p", "bias"), (AXIS, width)),
             Step("y", Op.RELU, ("a",), (AXIS, width)))
    return Graph(given, steps, ("y",))


def gram(inner: int) -> Graph:
    """Rows that depend on one another."""
    steps = (Step("t", Op.PERMUTE, ("x",), (inner, AXIS), dims=(1, 0)),
             Step("y", Op.MATMUL, ("x", "t"), (AXIS, AXIS)))
    return Graph((Given("x", (AXIS, inner), Kind.ARGUMENT),), steps, ("y",))


def fixed_sum(rows: int, width: int) -> Graph:
    steps = (Step("y", Op.SUM, ("x",), (1, 1), dims=(0, 1)),)
    return Graph((Given("x", (rows, width), Kind.ARGUMENT, 0.5, 0.29, positive=True),), steps, ("y",))
