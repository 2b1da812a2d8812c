import pytest

from kforge.core.workload import Problem, Workload, attribute, by_value

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
    assert (LINEAR.rows, LINEAR.without_layout.rows, Problem.of("silu_mul", I=8).rows) == (32, 0, 0)


def test_values_of_attributes_are_in_order_of_size_then_texts_then_none():
    assert sorted([None, "b", 64, "a", True, 9, 0.5], key=by_value) == [0.5, True, 9, 64, "a", "b", None]


def test_attributes_that_came_later_stand_in_no_key_at_the_value_that_stored_kernels_have():
    axes = {"Hq": 8, "Hkv": 2, "D": 64, "P": 32, "kv": "f16"}
    plain = Problem.of("paged_attention", **axes)
    assert plain.key == "paged_attention(D=64,Hkv=2,Hq=8,P=32,kv=f16)"
    assert plain == Problem.of("paged_attention", **axes, window=0, sinks=0) == Problem.parse(
        "paged_attention(D=64,Hkv=2,Hq=8,P=32,kv=f16,sinks=0,window=0)")
    assert plain.int("window") == plain["sinks"] == 0 and plain.attributes == {**axes, "window": 0, "sinks": 0}
    more = Problem.of("paged_attention", **axes, window=128, sinks=0)
    assert more.key == "paged_attention(D=64,Hkv=2,Hq=8,P=32,kv=f16,window=128)" and Problem.parse(more.key) == more
    assert more.int("window") == 128 and more.int("sinks") == 0
    assert Problem.of("other", window=0).key == "other(window=0)"


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("-3", -3), ("q4_1", "q4_1"), ("-", "-"), ("--5", "--5")])
def test_whole_numbers_are_read_as_such(text, value):
    assert attribute(text) == value
