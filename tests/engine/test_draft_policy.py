"""How many guesses are made where making them takes time: those that pay, and hardly any where none does."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kforge.engine.luck import TrackRecord
from kforge.engine.pacing import AdaptivePolicy, GuessTimes, Price
from kforge.engine.request import SamplingParams, Sequence

MOST = 8


class Machine:
    """Passes take what ``check(tokens)`` and ``guess(sequences)`` say, up to 5 % more; no clock enters. The policy
    hears of luck only where guesses were made."""

    def __init__(self, check: Callable[[int], float], guess: Callable[[int], float], sequences: int = 1) -> None:
        self.check, self.guess, self.sequences = check, guess, sequences
        self.policy, self.times, self.record = AdaptivePolicy(), GuessTimes(), TrackRecord()
        self.rng = random.Random(1)
        self.texts = [Sequence(n, [1], 1, SamplingParams(), 10**9) for n in range(sequences)]
        self.seconds = self.tokens = 0.0
        self.widths: list[int] = []

    def step(self, chance: float, behind: float = 0.0, ahead: int = 1000) -> None:
        n = self.sequences
        price = Price(self.times.passes(n), [behind] * n, [ahead] * n)
        rates = [self.record.rate(at) for at in range(n)]
        lengths = self.policy.lengths(rates, [MOST] * n, 63, price)
        guessing = behind * sum(length > 0 for length in lengths)
        for depth in range(max(lengths)):
            asked = sum(length > depth for length in lengths)
            taken = self.guess(asked) * self.rng.uniform(1.0, 1.05)
            self.times.passed(asked, asked, taken)
            guessing += taken
        for at, length in enumerate(lengths):
            right = 0
            while right < length and self.rng.random() < chance:
                right += 1
            self.tokens += 1 + right
            if length:
                self.record.offer(at, [7] * length)
                self.texts[at].tokens = [7] * right + [8]
                self.record.learn(self.texts[at], right + 1)
            else:
                self.record.fade(at)
        width = n + sum(lengths)
        taken = self.check(width) * self.rng.uniform(1.0, 1.05) + guessing
        self.policy.passed(n, width, taken, guessing)
        self.seconds += taken
        self.widths.append(width)

    def gain(self) -> float:
        """Tokens per second over those of a machine without guesses."""
        plain = self.sequences / (self.check(self.sequences) * 1.025)
        return self.tokens / self.seconds / plain


def played(check: Callable[[int], float], guess: Callable[[int], float], chance: Callable[[int], float],
           steps: int = 1000, sequences: int = 1) -> Machine:
    machine = Machine(check, guess, sequences)
    for n in range(steps):
        machine.step(chance(n))
    return machine


def best(chance: float, draft: float) -> float:
    """The most that can be gained where a check takes one second whatever its width, and a guess ``draft``."""
    return max((1 - chance ** (k + 1)) / (1 - chance) / (1 + k * draft) for k in range(MOST + 1))


@pytest.mark.parametrize("chance, draft", [(0.9, 0.1), (0.8, 0.05), (0.7, 0.2)])
def test_most_of_what_can_be_gained_is_gained(chance, draft):
    machine = played(lambda width: 1.0, lambda n: draft, lambda n: chance)
    assert machine.gain() > 0.85 * best(chance, draft) > 1


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("chance", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("draft", [0.1, 0.6])
@pytest.mark.parametrize("check", [lambda w: 1 + w / 20, float, lambda w: 1.0 + (w > 4) * 3],
                         ids=["flat", "dear", "step"])
def test_it_is_never_slower_by_more_than_trying_costs(check, draft, chance, sequences):
    machine = played(check, lambda n: draft * check(1), lambda n: chance, 1000, sequences)
    assert machine.gain() > 0.96


def test_what_never_pays_is_hardly_ever_guessed():
    machine = played(lambda width: 1.0, lambda n: 1.1, lambda n: 0.95, 2000)
    late = machine.widths[300:]
    assert sum(w > 1 for w in late) / len(late) < 0.01, "a guess takes longer than the token it is for"


def test_it_comes_back_when_guesses_get_right():
    machine = played(lambda width: 1 + width / 40, lambda n: 0.1, lambda n: 0.01 if n < 600 else 0.9, 3000)
    assert sum(w > 1 for w in machine.widths[300:600]) < 20
    assert sum(w > 2 for w in machine.widths[2500:]) > 400


def test_a_long_text_is_not_caught_up_with_for_a_few_tokens():
    machine = played(lambda width: 1.0, lambda n: 0.05, lambda n: 0.9, 200)
    machine.widths.clear()
    for _ in range(50):
        machine.step(0.9, behind=20.0, ahead=10)
    assert set(machine.widths) == {1}, "ten tokens take ten seconds"
    machine.step(0.9, behind=20.0, ahead=1000)
    assert machine.widths[-1] > 1


def test_a_price_that_was_not_seen_is_that_of_the_nearest():
    times = GuessTimes()
    assert times.passes(3) == [0.0] * 4 and times.behind(1000) == 0.0
    for seconds in (9.0, 1.0, 1.0, 1.0):
        times.passed(2, 3, seconds)
    for _ in range(3):
        times.passed(1, 100, 5.0)
    assert times.passes(4) == [0.0, 1.0, 1.0, 1.0, 1.0], "the first pass builds programs, and does not count"
    assert times.behind(200) == pytest.approx(10.0) and times.behind(3) == 0.0
