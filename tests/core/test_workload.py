import pytest

from kforge.core.workload import Problem, Workload, attribute

LINEAR = Problem.of("linear", K=576, N=960, weight="q4_1", act="a8", rows=32)


@pytest.mark.parametrize("workload", [Workload.of(LINEAR, M=8), Workload.of(Problem("sum", ()), T=1, S=2)], ids=str)
def test_a_key_names_its_workload(workload):
    assert Workload.parse(workload.key) == workload
    assert Problem.parse(workload.problem.key) == workload.problem
    assert workload.key == f"{workload.problem.key}@{workload.point}"


def test_a_problem_is_the_same_with_any_layout():
    assert LINEAR.without_layout == LINEAR.with_rows(64).without_layout
    assert LINEAR.without_layout.with_rows(32) == LINEAR
    assert "rows" not in LINEAR.without_layout.key


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("-3", -3), ("q4_1", "q4_1"), ("-", "-"), ("--5", "--5")])
def test_whole_numbers_are_read_as_such(text, value):
    assert attribute(text) == value
