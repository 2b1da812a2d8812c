"""The operator made of a record: its contract as the harness reads it."""

from __future__ import annotations

import numpy as np
import pytest
from imported_graphs import fixed_sum, gemm_relu, gram, operator_of, record_of, softmax

from kforge.core.errors import KforgeError
from kforge.core.workload import Problem, Workload
from kforge.harness.cases import plan_cases
from kforge.operators import Distribution, Residency, Role, get, import_file, imported_names, names
from kforge.operators.axes import workload_of
from kforge.operators.graph import AXIS, Given, Graph, Kind, Op, Step
from kforge.operators.import_record import write


def test_tensors_are_what_is_given_and_then_what_is_made() -> None:
    made = operator_of(gemm_relu(12, 8))
    specs = made.tensors(Workload.of(made.problem, B=3))
    assert [(s.name, s.shape, s.role) for s in specs] == [
        ("x", (3, 12), Role.IN), ("weight", (8, 12), Role.IN), ("bias", (8,), Role.IN), ("out", (3, 8), Role.OUT)]
    assert made.cost(made.workload).operations == (("fp32_fma", 2 * 20 * 12 * 8 + 20 * 8 + 20 * 8),)
    assert made.cost(made.workload).hot_bytes == 4 * (20 * 12 + 8 * 12 + 8 + 20 * 8)


def test_a_large_weight_is_streamed_and_outputs_never_are() -> None:
    made = operator_of(gemm_relu(8192, 8192), batch=4)
    kinds = {s.name: s.residency for s in made.tensors(made.workload)}
    assert kinds == {"x": Residency.HOT, "weight": Residency.STREAMED, "bias": Residency.HOT, "out": Residency.HOT}
    assert made.cost(made.workload).streamed_bytes > 1 << 28


def test_buckets_are_powers_of_two_up_to_the_examples_batch() -> None:
    made = operator_of(softmax(5), batch=20)
    points = {b: made.bucket(made.problem, {"B": b})["B"] for b in (1, 2, 3, 9, 17, 20, 500)}
    assert points == {1: 1, 2: 2, 3: 4, 9: 16, 17: 20, 20: 20, 500: 20}
    shapes = [w.axes["B"] for w in made.shapes(Workload.of(made.problem, B=16), seed=3)]
    assert {9, 16} <= set(shapes) and all(9 <= b <= 16 for b in shapes) and any(b % 2 for b in shapes)


def test_a_fixed_graph_has_one_shape() -> None:
    made = operator_of(fixed_sum(30, 40))
    assert [w.key for w in made.shapes(made.workload, 1)] == [made.workload.key]
    assert made.workload.axes == {"B": 1} and made.row_axis == ""
    assert {case.distribution for case in plan_cases(made, made.workload, 5)} == set(Distribution)


def test_rows_are_independent_where_the_graph_says_so() -> None:
    assert operator_of(softmax(5)).row_axis == "B"
    assert operator_of(gram(5)).row_axis == ""
    made = operator_of(gemm_relu(12, 8))
    inputs = made.inputs(made.workload, 1, Distribution.ROWS)
    rows = np.array([3, 3, 17])
    part = made.part(made.workload, inputs, rows)
    assert part is not None and part.inputs["weight"] is inputs["weight"]
    whole, some = made.reference(made.workload, inputs)["out"], made.reference(part.workload, part.inputs)["out"]
    np.testing.assert_allclose(some.reference, whole.reference[rows], rtol=1e-12)
    kept = whole.rows(rows)
    assert kept.free is not None and kept.free.any() == (some.free is not None)


def test_every_distribution_decides_something() -> None:
    exponential = Graph((Given("x", (AXIS, 40), Kind.ARGUMENT),), (Step("y", Op.EXP, ("x",), (AXIS, 40)),), ("y",))
    for graph in (softmax(40), gemm_relu(30, 9), gram(16), fixed_sum(9, 9), exponential):
        made = operator_of(graph)
        for distribution in Distribution:
            inputs = made.inputs(made.workload, 7, distribution)
            again = made.inputs(made.workload, 7, distribution)
            assert all(inputs[n].tobytes() == again[n].tobytes() for n in inputs)
            bound = made.reference(made.workload, inputs)["out"]
            assert bound.free is None or bound.free.mean() < 0.8, distribution
            if distribution is Distribution.NORMAL:
                assert np.isfinite(bound.reference).all() and (bound.bound[bound.reference != 0] > 0).all()


def test_inputs_are_as_the_originals_were() -> None:
    made = operator_of(gemm_relu(400, 300), batch=50)
    timed = made.inputs(made.workload, 2, Distribution.NORMAL)
    assert abs(float(timed["weight"].std()) - 0.1) < 0.01
    assert float(timed["bias"].std()) > 0.1  # all ones at first: a kernel that forgets it must be found out
    positive = operator_of(fixed_sum(30, 40))
    assert positive.inputs(positive.workload, 2, Distribution.NORMAL)["x"].min() >= 0
    assert min(positive.inputs(positive.workload, s, Distribution.NEGATIVE)["x"].min() for s in range(6)) < 0


def test_there_is_no_order_specification() -> None:
    made = operator_of(softmax(5))
    inputs = made.inputs(made.workload, 0, Distribution.NORMAL)
    with pytest.raises(KforgeError, match="no order specification: declare its kernels relaxed"):
        made.spec(made.workload, inputs)


@pytest.fixture
def kept(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path))
    write(record_of(softmax(5)), import_file("mine"))


def test_imported_operators_are_found_by_name(kept: None) -> None:
    assert imported_names() == ("mine",) and "mine" not in names()
    made = get("mine")
    assert made.name == "mine" and get("mine") is made
    workload = workload_of("mine", {}, lambda problem: 0)
    assert Workload.parse(workload.key) == workload == made.workload  # type: ignore[attr-defined]
    assert workload_of("mine", {"B": 7}, lambda problem: 0).axes == {"B": 7}
    with pytest.raises(KforgeError, match="has no axis M"):
        workload_of("mine", {"M": 7}, lambda problem: 0)


def test_an_operator_that_is_imported_again_is_another_one(kept: None) -> None:
    before = get("mine")
    write(record_of(softmax(6)), import_file("mine"))
    now = get("mine")
    assert now is not before
    with pytest.raises(KforgeError, match="is of another import: mine is now mine"):
        now.tensors(before.workload)  # type: ignore[attr-defined]


def test_a_broken_record_is_told(kept: None) -> None:
    file = import_file("mine")
    file.write_text(file.read_text().replace('"max"', '"minmax"'))
    with pytest.raises(KforgeError, match="is not the record of an import"):
        get("mine")
    with pytest.raises(KeyError, match="no operator 'other'; known are embedding"):
        get("other")


def test_problems_keep_their_names_in_keys() -> None:
    problem = operator_of(softmax(5)).problem
    assert Problem.parse(problem.key) == problem


@pytest.mark.parametrize("dims", [(1,), (0,)])
@pytest.mark.parametrize("op", [Op.MAX, Op.MIN])
def test_extremes_stand_at_the_ends_of_lines_too(op: Op, dims: tuple[int, ...]) -> None:
    shape = (6, 1000) if dims == (1,) else (1000, 6)
    made = tuple(1 if i in dims else n for i, n in enumerate(shape))
    graph = Graph((Given("x", shape, Kind.ARGUMENT),), (Step("y", op, ("x",), made, dims=dims),), ("y",))
    operator = operator_of(graph)
    for seed in range(3):
        x = operator.inputs(operator.workload, seed, Distribution.ONE_HOT)["x"]
        places = (x.argmax if op is Op.MAX else x.argmin)(axis=dims[0])
        assert {0, 999} <= set(places.tolist())
        assert len(set(places.tolist()) - {0, 999}) == 2
