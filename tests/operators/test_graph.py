"""A graph that breaks a rule is refused with the step's name, in code and as JSON; a good one comes back as it was."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from pydantic import ValidationError

from kforge.core.workload import Problem
from kforge.operators.graph import AXIS, Given, Graph, GraphError, Kind, Op, Step
from kforge.operators.import_record import GraphRecord

X = Given("x", (AXIS, 6), Kind.ARGUMENT)
SUM = Step("s", Op.SUM, ("x",), (AXIS, 1), dims=(1,))


def graph(*steps: Step, outputs: tuple[str, ...] = ("s",)) -> Graph:
    return Graph((X,), steps, outputs)


BROKEN = {
    "a later value": (Step("s", Op.NEG, ("t",), (AXIS, 6)), Step("t", Op.NEG, ("x",), (AXIS, 6))),
    "a name twice": (SUM, SUM),
    "another shape than it has": (Step("s", Op.NEG, ("x",), (AXIS, 7)),),
    "too few operands": (Step("s", Op.ADD, ("x",), (AXIS, 6)),),
    "a sum over the batch": (Step("s", Op.SUM, ("x",), (1, 6), dims=(0,)),),
    "a dimension that is not there": (Step("s", Op.SUM, ("x",), (AXIS, 1), dims=(2,)),),
    "an inner dimension that differs": (Step("s", Op.MATMUL, ("x", "x"), (AXIS, 6)),),
    "a view with more elements": (Step("s", Op.RESHAPE, ("x",), (AXIS, 2, 4)),),
    "a view that moves the batch": (Step("s", Op.RESHAPE, ("x",), (6, AXIS)),),
    "a slice beyond the end": (Step("s", Op.SLICE, ("x",), (AXIS, 4), dims=(1,), bounds=(3, 7)),),
    "a slice without bounds": (Step("s", Op.SLICE, ("x",), (AXIS, 4)),),
    "a join of nothing": (Step("s", Op.CONCAT, (), (AXIS, 6), dims=(1,)),),
    "a join of different ranks": (Step("n", Op.SCALAR, (), ()), Step("s", Op.CONCAT, ("x", "n"), (AXIS, 6), dims=(1,))),
    "a broadcast that cannot be": (Step("s", Op.BROADCAST, ("x",), (AXIS, 12)),),
}


@pytest.mark.parametrize("steps", BROKEN.values(), ids=BROKEN)
def test_a_broken_graph_is_refused(steps: tuple[Step, ...]) -> None:
    with pytest.raises(ValueError):
        graph(*steps)


def test_a_graph_names_what_it_does_not_make() -> None:
    with pytest.raises(GraphError, match="it returns t"):
        graph(SUM, outputs=("t",))
    with pytest.raises(GraphError, match="it returns nothing"):
        graph(SUM, outputs=())


def test_the_hash_forgets_names_and_sees_everything_else() -> None:
    renamed = Graph((dataclasses.replace(X, name="y"),), (Step("t", Op.SUM, ("y",), (AXIS, 1), dims=(1,)),), ("t",))
    assert renamed.hash == graph(SUM).hash
    other = {graph(Step("s", Op.MAX, ("x",), (AXIS, 1), dims=(1,))).hash, graph(SUM).hash,
             graph(Step("s", Op.NEG, ("x",), (AXIS, 6))).hash, graph(SUM, outputs=("x",)).hash}
    assert len(other) == 4


def test_a_hash_survives_in_a_key_whatever_its_digits() -> None:
    for i in range(300):
        made = Graph((Given("x", (i + 1,), Kind.ARGUMENT),), (), ("x",))
        problem = Problem.of("f", graph=made.hash)
        assert Problem.parse(problem.key) == problem


def test_a_graph_as_json_is_the_same_graph() -> None:
    made = graph(Step("n", Op.SCALAR, (), (), value=-math.inf), Step("s", Op.MAXIMUM, ("x", "n"), (AXIS, 6)))
    text = GraphRecord.of(made).model_dump_json()
    assert GraphRecord.model_validate_json(text).made() == made


def altered(**changes: object) -> str:
    document = json.loads(GraphRecord.of(graph(SUM)).model_dump_json())
    for path, value in changes.items():
        *places, last = path.split("__")
        at = document
        for place in places:
            at = at[int(place) if place.isdigit() else place]
        at[last] = value
    return json.dumps(document)


HOSTILE = {
    "a name that is code": {"given__0__name": "x); system("},
    "a name of the harness": {"given__0__name": "scratch", "steps__0__inputs": ["scratch"]},
    "an unknown operation": {"steps__0__op": "exec"},
    "a negative extent": {"given__0__shape": ["B", -6]},
    "an extent that is text": {"given__0__shape": ["B", "6"]},
    "an extent that is no whole number": {"given__0__shape": ["B", 6.5]},
    "a batch that is not first": {"given__0__shape": [6, "B"], "steps__0__shape": [6, 1]},
    "more elements than there is memory": {"given__0__shape": ["B", 1 << 31, 1 << 31]},
    "a negative dimension": {"steps__0__dims": [-1]},
    "NaN": {"steps__0__value": math.nan},
    "an infinite mean": {"given__0__mean": math.inf},
    "a field of its own": {"extra": 1},
    "no argument": {"given__0__kind": "parameter"},
    "a graph that breaks its own rules": {"steps__0__shape": ["B", 2]},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_json_that_is_no_graph_is_refused(changes: dict[str, object]) -> None:
    GraphRecord.model_validate_json(altered())
    with pytest.raises(ValidationError):
        GraphRecord.model_validate_json(altered(**changes))
