"""Sampling: the filters keep what they say, and a token depends on its own row, seed and position alone."""

import warnings

import numpy as np
import pytest

from kforge.core.errors import KforgeError
from kforge.engine.request import SamplingParams
from kforge.engine.sampling import log_probabilities, sample, uniform

RNG = np.random.default_rng(5)


def frequencies(logits: np.ndarray, params: SamplingParams, draws: int = 4000) -> np.ndarray:
    counts = np.bincount([sample(logits, params, i) for i in range(draws)], minlength=len(logits))
    return counts / draws


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def test_greedy_takes_the_lowest_of_equal_maxima():
    assert sample(np.float32([0, 3, 3, 1]), SamplingParams(), 0) == 1


def test_draws_follow_the_softmax_at_the_temperature():
    logits = np.float32([0.0, 1.0, 2.0, -1.0])
    seen = frequencies(logits, SamplingParams(temperature=0.7, seed=3))
    np.testing.assert_allclose(seen, softmax(logits / 0.7), atol=0.03)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1, top_k=2), {1, 2}),
        (SamplingParams(temperature=1, top_p=0.6), {2}),
        (SamplingParams(temperature=1, top_p=0.88), {1, 2}),
        (SamplingParams(temperature=1, min_p=0.3), {1, 2}),
        (SamplingParams(temperature=1, top_k=3, top_p=0.8, min_p=0.5), {2}),
    ],
)
def test_filters_keep_what_they_say(params, kept):
    logits = np.float32([0.0, 1.0, 2.0, -1.0])  # softmax 0.087 0.237 0.644 0.032
    assert set(np.flatnonzero(frequencies(logits, params, 1000))) == kept


def test_top_p_of_a_flat_distribution_needs_the_full_sort():
    logits = RNG.normal(size=5000).astype(np.float32) * 0.01
    p = softmax(logits.astype(np.float64))
    order = np.argsort(-p, kind="stable")
    kept = set(order[: int(np.searchsorted(np.cumsum(p[order]), 0.9)) + 1].tolist())
    assert {sample(logits, SamplingParams(temperature=1, top_p=0.9), i) for i in range(500)} <= kept


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_the_least_temperature_takes_the_most_probable_token_without_a_word(filters):
    logits = np.float32([0.0, 3.0, -1.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {sample(logits, SamplingParams(temperature=5e-324, **filters), i) for i in range(20)} == {1}


@pytest.mark.parametrize("filters", [{}, {"top_k": 1}, {"min_p": 0.9}, {"top_p": 0.1}])
def test_what_a_constraint_forbids_is_never_chosen(filters):
    params = SamplingParams(temperature=1.5, **filters)
    logits = np.float32([0.0, 1.0, 9.0, -1.0, 8.0, 1.0])
    allowed = np.array([True, True, False, True])  # shorter than the row: 4 and 5 are not allowed
    assert {sample(logits, params, i, allowed) for i in range(300)} <= {0, 1, 3}
    assert sample(logits, SamplingParams(), 0, allowed) == 1


def test_a_constraint_leaves_the_proportions_of_what_it_allows():
    logits = np.float32([0.0, 1.0, 5.0, -1.0])
    params = SamplingParams(temperature=1, seed=8)
    counts = np.bincount([sample(logits, params, i, np.array([True, True, False, True])) for i in range(4000)])
    np.testing.assert_allclose(counts[[0, 1, 3]] / 4000, softmax(logits[[0, 1, 3]]), atol=0.03)


def test_a_constraint_that_allows_nothing_is_an_error():
    for params in (SamplingParams(), SamplingParams(temperature=1)):
        with pytest.raises(KforgeError, match="allows no token"):
            sample(np.float32([1, 2]), params, 0, np.zeros(2, bool))


def test_log_probabilities_are_the_chosen_then_the_best():
    logits = np.float32([0.0, 2.0, 2.0, -1.0, 5.0])
    p = np.log(softmax(logits.astype(np.float64)))
    found = log_probabilities(logits, 3, 3)
    assert [token for token, _ in found] == [3, 4, 1, 2]
    np.testing.assert_allclose([value for _, value in found], p[[3, 4, 1, 2]], atol=1e-12)
    assert log_probabilities(logits, 3, 0) == found[:1]
    assert [token for token, _ in log_probabilities(logits, 0, 99)] == [0, 4, 1, 2, 0, 3]


def test_noise_is_a_function_of_seed_and_position():
    values = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(values) == 2500
    assert abs(np.mean(list(values)) - 0.5) < 0.02
    assert uniform(7, 9) == uniform(7, 9)


def test_a_row_gives_the_same_token_wherever_it_lies():
    rows = RNG.normal(size=(5, 4099)).astype(np.float32) * 3
    params = SamplingParams(temperature=1.1, top_p=0.95, seed=11)
    for row in rows:
        moved = np.empty(len(row) + 3, np.float32)[3:]
        moved[:] = row
        assert sample(row, params, 17) == sample(moved, params, 17)


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"max_tokens": 0}, {"stop": ("",)}, {"min_p": 2}])
def test_impossible_parameters_are_one_sentence(bad):
    with pytest.raises(KforgeError, match=r"must .*\.$"):
        SamplingParams(**bad)
