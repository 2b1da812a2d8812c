"""Guesses are what followed before, are checked only where that pays, and never change what is said."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kforge.core.errors import KforgeError
from kforge.engine.drafting import MAX_DRAFT, PromptLookup, Speculation
from kforge.engine.pacing import AdaptivePolicy
from kforge.engine.request import SamplingParams, Sequence
from kforge.engine.speculation import guessing


def test_what_followed_the_last_tokens_is_proposed():
    assert PromptLookup(3, 2).propose([1, 2, 3, 4, 5, 9, 1, 2, 3], 2) == [4, 5]
    assert PromptLookup(3, 2).propose([1, 2, 3, 4, 5, 9, 1, 2, 8], 2) == []


def test_the_longest_match_decides_and_among_equals_the_latest():
    assert PromptLookup(3, 1).propose([1, 2, 3, 4, 7, 3, 5, 1, 2, 3], 1) == [4], "three tokens say more than one"
    assert PromptLookup(2, 2).propose([1, 2, 3, 1, 2, 4, 1, 2], 1) == [4]


def test_a_period_goes_on():
    assert PromptLookup(2, 2).propose([8, 1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 4), st.integers(0, 3), st.integers(1, 9))
def test_growing_by_pieces_is_the_same_as_all_at_once(tokens, longest, fewer, k):
    """And both are what a search of the whole text says."""
    shortest = max(longest - fewer, 1)
    grown = PromptLookup(longest, shortest)
    for end in range(1, len(tokens) + 1):
        piece = grown.propose(tokens[:end], k)
    assert piece == PromptLookup(longest, shortest).propose(tokens, k) == searched(tokens, longest, shortest, k)


def searched(tokens: list[int], longest: int, shortest: int, k: int) -> list[int]:
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        places = [at for at in range(n, len(tokens)) if tokens[at - n : at] == tokens[-n:]]
        if places:
            text = list(tokens)
            for i in range(k):
                text.append(text[places[-1] + i])
            return text[len(tokens) :]
    return []


def test_impossible_settings_are_one_sentence():
    with pytest.raises(KforgeError, match=r"n-gram"):
        PromptLookup(2, 3)
    with pytest.raises(KforgeError, match=r"no speculation 'medusa': use ngram"):
        guessing("medusa")


# The policy, on a machine whose passes take what ``cost`` says: no clock enters.


def play(cost: Callable[[int], float], rate: Callable[[int], float], passes: int, sequences: int = 1,
         spare: int = 63) -> tuple[float, float]:
    """Tokens per second with the policy and without, when every guess is right with the chance ``rate(pass)``, of which
    the policy hears something near."""
    policy, rng = AdaptivePolicy(), random.Random(1)
    seconds = tokens = 0.0
    for n in range(passes):
        chance = rate(n)
        believed = [min(max(chance + rng.uniform(-0.05, 0.05), 0.01), 0.99) for _ in range(sequences)]
        lengths = policy.lengths(believed, [MAX_DRAFT] * sequences, spare)
        assert len(lengths) == sequences and sum(lengths) <= spare and max(lengths) <= MAX_DRAFT
        width = sequences + sum(lengths)
        taken = cost(width)
        policy.passed(sequences, width, taken * rng.uniform(1.0, 1.05))
        seconds += taken
        for length in lengths:
            tokens += 1
            while length and rng.random() < chance:
                tokens, length = tokens + 1, length - 1
    return tokens / seconds, sequences / cost(sequences)


def test_what_costs_nothing_and_is_right_is_checked_in_full():
    with_policy, without = play(lambda width: 1.0, lambda n: 0.95, 1000)
    assert with_policy > 5 * without, "the best there is: (1 - 0.95^9) / 0.05 = 7.4 tokens a pass"


@pytest.mark.parametrize("sequences, rate", [(1, 0.05), (1, 0.5), (1, 0.99), (4, 0.7)])
@pytest.mark.parametrize("cost", [float, lambda w: 1 + w * w, lambda w: 1.0 + (w > 4) * 3 + w / 8])
def test_it_is_never_slower_by_more_than_trying_costs(cost, rate, sequences):
    with_policy, without = play(cost, lambda n: rate, 1500, sequences)
    assert with_policy > 0.97 * without


def test_where_checking_never_pays_it_is_hardly_ever_done():
    widths: list[int] = []
    play(lambda width: widths.append(width) or float(width), lambda n: 0.5, 2000)
    assert sum(w > 1 for w in widths[300:]) / len(widths[300:]) < 0.04


def test_it_comes_back_when_guesses_get_right_and_when_wide_passes_get_cheap():
    with_policy, without = play(lambda width: 1 + width / 20, lambda n: 0.01 if n < 500 else 0.9, 2000)
    assert with_policy > 2.5 * without
    calls = iter(range(10**6))
    with_policy, _ = play(lambda width: float(width) if next(calls) < 500 else 1.0, lambda n: 0.9, 2500)
    assert with_policy > 3, "one token a pass at a second each is what there is without"


def test_a_width_that_is_dear_is_avoided_for_one_that_pays():
    widths: list[int] = []
    play(lambda width: widths.append(width) or (1.0 if width <= 4 else 10.0), lambda n: 0.9, 2000)
    late = widths[500:]
    assert sum(w == 4 for w in late) / len(late) > 0.85


def test_no_more_is_checked_than_there_is_room_for():
    policy = AdaptivePolicy()
    lengths = [0]
    for _ in range(20):
        policy.passed(4, 4 + sum(lengths), 1.0)
        lengths = policy.lengths([0.9, 0.2, 0.9, 0.9], [8, 8, 0, 8], 5)
    assert sum(lengths) == 5 and lengths[2] == 0 and lengths[0] >= lengths[1], "the likeliest first"


# What becomes of guesses


class Fixed:
    """A policy that checks a fixed part of every draft, and remembers what it was told."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.rates: list[float] = []

    def lengths(self, rates, offered, spare):
        self.rates = list(rates)
        return [min(self.length, n) for n in offered]

    def passed(self, sequences, tokens, seconds):
        pass


class Sevens:
    def propose(self, tokens, k):
        return [7] * k


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(0, tokens, len(tokens), SamplingParams(), 10_000)


@pytest.mark.parametrize("checked", [0, 3])
def test_luck_is_learnt_from_what_came_whether_it_was_checked_or_not(checked):
    policy = Fixed(checked)
    speculation, told = Speculation(Sevens, policy), sequence([1, 2, 3])
    for token, came in ((7, 1 + checked), (8, 1)):
        for _ in range(40):
            assert speculation.propose([told], [100], 100) == [[7] * checked]
            told.tokens += [token] * came
            speculation.learn(told, came)
        assert policy.rates[0] > 0.9 if token == 7 else policy.rates[0] < 0.1


def test_a_draft_keeps_to_its_sequence_s_room():
    speculation, told = Speculation(policy=Fixed(8)), sequence([1, 2, 3, 4, 5] * 4)
    assert [len(d) for room in (3, 0, -1) for d in speculation.propose([told], [room], 100)] == [3, 0, 0]
    speculation.drop(told.id)
    assert speculation.propose([told], [2], 100) == [[1, 2]]
