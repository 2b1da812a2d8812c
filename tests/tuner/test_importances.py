"""Which parameters mattered: from enough points, each for what no other one explains."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from kforge.tuner.importances import importances
from kforge.tuner.points import Point

T = "cpp/rms_norm/some.cc.j2"
WEIGHTS = {"b": 1.0}


def measured(points: list[dict[str, int]], log_time: dict[str, float], noise: float = 0.0) -> dict:
    """Points whose log time is the sum of what their values weigh."""
    lucky = random.Random(7)
    found = {}
    for params in points:
        log = sum(log_time.get(name, 0.0) * value for name, value in params.items()) + lucky.gauss(0, noise)
        found[Point(T, 0, tuple(sorted(params.items())))] = {"b": 1e-6 * math.exp(log)}
    return found


GRID = [{"a": a, "b": b, "c": c} for a, b, c in itertools.product(range(3), range(3), range(3))]


def test_a_parameter_explains_what_it_explains_and_the_shares_are_of_one_whole() -> None:
    found = importances(measured(GRID, {"a": 0.2, "b": 0.1}), WEIGHTS, T)
    assert found.points == 27
    assert found.shares["a"] == pytest.approx(0.8) and found.shares["b"] == pytest.approx(0.2)
    assert found.shares["c"] == pytest.approx(0.0, abs=1e-9)


def test_too_few_points_for_so_many_values_say_nothing() -> None:
    few = importances(measured(GRID[:11], {"a": 0.2}), WEIGHTS, T)
    assert (few.points, few.shares) == (11, {})
    many = [{"a": n, "b": n % 2} for n in range(13)]
    assert importances(measured(many, {"a": 0.1}), WEIGHTS, T).shares == {}
    assert importances({}, WEIGHTS, T).shares == {}


def test_two_parameters_that_always_go_together_do_not_both_get_the_whole() -> None:
    together = [{"a": a, "b": a, "c": c} for a, c in itertools.product(range(3), range(8))]
    found = importances(measured(together, {"a": 0.2, "c": 0.01}), WEIGHTS, T)
    assert found.shares["a"] == pytest.approx(0, abs=1e-9) and found.shares["b"] == pytest.approx(0, abs=1e-9)
    assert sum(found.shares.values()) <= 1


def test_chance_is_not_importance() -> None:
    found = importances(measured(GRID, {"a": 0.2}, noise=0.05), WEIGHTS, T)
    assert found.shares["a"] > 0.7 and found.shares["b"] + found.shares["c"] < 0.1
    assert sum(found.shares.values()) <= 1


def test_equal_times_and_points_that_ran_in_some_buckets_alone_count_for_nothing() -> None:
    assert importances(measured(GRID, {}), WEIGHTS, T).shares == {}
    assert importances(measured(GRID, {"a": 0.2}), {"b": 1.0, "another": 1.0}, T).points == 0
