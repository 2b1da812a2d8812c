"""Rejection sampling: whatever was guessed, tokens follow the target's distribution, and are a function of the seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from goodness import chi_square
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge.engine.rejection import Guess, verified
from kforge.engine.request import SamplingParams
from kforge.engine.sampling import Distribution, Purpose, distribution, draw, uniform

VOCAB, DRAWS = 8, 8_000
RNG = np.random.default_rng(11)
P = RNG.normal(size=VOCAB).astype(np.float32) * 1.5
Q = (P + RNG.normal(size=VOCAB)).astype(np.float32)


def probabilities(of: Distribution) -> np.ndarray:
    dense = np.zeros(VOCAB)
    dense[slice(None) if of.ids is None else of.ids] = of.weights / of.weights.sum()
    return dense


def drawn(wanted: Distribution, guessed: Distribution, checked) -> np.ndarray:
    """How often each token comes of guesses that are drawn, by one seed after the other."""
    counts = np.zeros(VOCAB, int)
    for seed in range(DRAWS):
        position = seed % 7
        guess = Guess(draw(guessed, uniform(seed, position)), guessed)
        counts[checked(wanted, guess, seed, position)] += 1
    return counts


CASES = {
    "plain": (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0)),
    "sharper guesses": (SamplingParams(temperature=1.2), SamplingParams(temperature=0.4)),
    "filters of the target": (SamplingParams(temperature=1.0, top_k=5), SamplingParams(temperature=1.0)),
    "filters of the guess": (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=3)),
    "filters of both": (SamplingParams(temperature=0.9, top_p=0.9), SamplingParams(temperature=0.9, top_p=0.9)),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_follow_the_target_whatever_is_guessed(case):
    target, draft = CASES[case]
    wanted, guessed = distribution(P, target), distribution(Q, draft)
    assert chi_square(drawn(wanted, guessed, verified), probabilities(wanted)) < 1


def accept_all(wanted, guess, seed, position):
    return guess.token


def resample_from_the_target(wanted, guess, seed, position):
    token = verified(wanted, guess, seed, position)
    return token if token == guess.token else draw(wanted, uniform(seed, position, Purpose.RESIDUAL))


def with_the_noise_of_the_guess(wanted, guess, seed, position):
    token = verified(wanted, guess, seed, position)
    return token if token == guess.token else draw(wanted, uniform(seed, position))


@pytest.mark.parametrize("wrong", [accept_all, resample_from_the_target, with_the_noise_of_the_guess])
def test_the_measure_tells_what_is_wrong(wrong):
    wanted, guessed = (distribution(logits, SamplingParams(temperature=1.0)) for logits in (P, Q))
    assert chi_square(drawn(wanted, guessed, wrong), probabilities(wanted)) > 2


@pytest.mark.parametrize("guess", [0, int(P.argmax()), int(P.argmin())])
def test_a_guess_that_was_not_drawn_is_accepted_as_often_as_the_target_says_it(guess):
    wanted = distribution(P, SamplingParams(temperature=1.0))
    counts = np.bincount([verified(wanted, Guess(guess, None), seed, 3) for seed in range(DRAWS)], minlength=VOCAB)
    assert chi_square(counts, probabilities(wanted)) < 1


def test_as_many_guesses_are_accepted_as_can_be():
    """1 - |p - q| / 2; the share found is within four standard deviations, 0.022."""
    wanted, guessed = (distribution(logits, SamplingParams(temperature=1.0)) for logits in (P, Q))
    accepted = 0
    for seed in range(DRAWS):
        guess = Guess(draw(guessed, uniform(seed, 2)), guessed)
        accepted += verified(wanted, guess, seed, 2) == guess.token
    best = np.minimum(probabilities(wanted), probabilities(guessed)).sum()
    assert 0.2 < best < 0.9
    assert abs(accepted / DRAWS - best) < 4 * math.sqrt(0.25 / DRAWS)


def test_what_is_the_same_distribution_is_always_accepted():
    wanted = distribution(P, SamplingParams(temperature=0.7, top_p=0.95))
    for seed in range(500):
        token = draw(wanted, uniform(seed, 1))
        assert verified(wanted, Guess(token, wanted), seed, 1) == token


def test_a_token_is_a_function_of_seed_position_and_guess():
    wanted, guessed = (distribution(logits, SamplingParams(temperature=1.0)) for logits in (P, Q))
    guess = Guess(int(Q.argmax()), guessed)
    tokens = [verified(wanted, guess, seed, position) for seed in range(40) for position in range(5)]
    assert tokens == [verified(wanted, guess, seed, position) for seed in range(40) for position in range(5)]
    assert len(set(tokens)) > 1


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 1.0)), min_size=1, max_size=6,
                                       unique_by=lambda pair: pair[0]),
       st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 1.0)), min_size=1, max_size=6,
                unique_by=lambda pair: pair[0]), st.booleans(), st.booleans())
def test_only_what_the_target_may_say_is_said(seed, target, draft, all_of_target, all_of_draft):
    """And the guess is taken for certain where the target says it at least as often as the draft."""
    wanted, guessed = sparse(target, all_of_target), sparse(draft, all_of_draft)
    token = draw(guessed, uniform(seed, 0))
    got = verified(wanted, Guess(token, guessed), seed, 0)
    p, q = (dict(zip(range(10) if d.ids is None else d.ids.tolist(), d.weights / d.weights.sum(), strict=False))
            for d in (wanted, guessed))
    assert p.get(got, 0) > 0
    if p.get(token, 0) >= q[token]:
        assert got == token
    elif got != token:
        assert p[got] > q.get(got, 0) or math.isclose(p[got], q.get(got, 0))


def sparse(pairs: list[tuple[int, float]], everything: bool) -> Distribution:
    ids, weights = (np.array(column) for column in zip(*sorted(pairs), strict=True))
    if not everything:
        return Distribution(ids, weights.astype(np.float64))
    dense = np.zeros(10)
    dense[ids] = weights
    return Distribution(None, dense)


def test_noise_for_one_purpose_says_nothing_of_another():
    """Pairs fall into a square evenly: 16 cells, each with 1/16 of the pairs within five standard deviations."""
    for one in Purpose:
        for other in Purpose:
            if one == other:
                continue
            pairs = [(uniform(seed, position, one), uniform(seed, position, other))
                     for seed in range(80) for position in range(100)]
            cells = np.histogram2d(*np.array(pairs).T, bins=4, range=[[0, 1], [0, 1]])[0]
            spread = 5 * math.sqrt(len(pairs) / 16 * 15 / 16)
            assert abs(cells - len(pairs) / 16).max() < spread
