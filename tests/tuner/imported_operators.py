"""Small imported operators, put where an import puts them, and a generated template's stand-in."""

from __future__ import annotations

from kforge.operators import get, import_file
from kforge.operators.graph import Given, Graph, Kind, Op, Step
from kforge.operators.import_record import GraphRecord, ImportRecord, write
from kforge.operators.imported import Imported

NAME = "row_softmax"
SOFTMAX = Graph(
    (Given("x", ("B", 96), Kind.ARGUMENT),),
    (
        Step("top", Op.MAX, ("x",), ("B", 1), dims=(1,)),
        Step("below", Op.SUB, ("x", "top"), ("B", 96)),
        Step("power", Op.EXP, ("below",), ("B", 96)),
        Step("total", Op.SUM, ("power",), ("B", 1), dims=(1,)),
        Step("share", Op.DIV, ("power", "total"), ("B", 96)),
    ),
    ("share",),
)
FIXED = Graph((Given("x", (8, 8), Kind.ARGUMENT),), (Step("y", Op.RELU, ("x",), (8, 8)),), ("y",))


def stored(graph: Graph = SOFTMAX, name: str = NAME, batch: int = 24) -> Imported:
    """As if the file of the function had been imported into the data folder that ``KFORGE_HOME`` names."""
    file = import_file(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    record = GraphRecord.of(graph)
    write(ImportRecord(name=name, source="a test", source_hash="0" * 16, graph=record, batch=batch), file)
    operator = get(name)
    assert isinstance(operator, Imported)
    return operator


def template(body: str, numerics: str = "relaxed", operator: str = NAME) -> str:
    """A template's text; ``body`` is what each thread does."""
    return f"""{{#- kforge
operator = "{operator}"
version = 1
numerics = "{numerics}"
summary = "of a test"
[params.step]
choices = [1, 2]
default = 1
-#}}
#include "kforge/abi.h"
#include "kforge/math.h"
extern "C" void kforge_kernel(const struct kf_launch *launch) {{
{body}
}}
"""
