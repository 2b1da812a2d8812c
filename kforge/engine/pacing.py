"""How many guesses are worth making and checking, by the times of passes and the chances of guesses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

_MARGIN = 0.05  # expected gain below which a wider pass is not worth it
_TRYING = 0.01  # part of the time that measuring anew may cost
_SAMPLES = 5  # times kept of each width
_PLAIN_FRESH, _WIDE_FRESH = 32, 128  # passes after which the time of a plain, of a wider one is measured anew
_NEAR = 16  # tokens that a text may lack, and still be guessed for at once
_HOPED = 0.9  # the luck that a try of guesses without luck hopes for


class Cost(NamedTuple):
    seconds: float
    fresh: bool  # measured so lately that it need not be tried again


class StepCosts:
    """Seconds of passes by (sequences, tokens). The first of each is not counted: programs are built in it."""

    def __init__(self) -> None:
        self._recent: dict[int, dict[int, _Recent]] = {}
        self._passes: dict[int, int] = {}

    def record(self, sequences: int, tokens: int, seconds: float) -> bool:
        """Whether it counts."""
        passes = self._passes[sequences] = self._passes.get(sequences, 0) + 1
        widths = self._recent.setdefault(sequences, {})
        if tokens not in widths:
            widths[tokens] = _Recent()
            return False
        widths[tokens].add(seconds, passes)
        return True

    def of(self, sequences: int) -> dict[int, Cost]:
        """By tokens, ascending, for passes of so many sequences."""
        passes, known = self._passes.get(sequences, 0), {}
        for tokens, recent in sorted(self._recent.get(sequences, {}).items()):
            if recent.seconds:
                limit = _PLAIN_FRESH if tokens == sequences else _WIDE_FRESH
                known[tokens] = Cost(recent.typical, passes - recent.at < limit)
        return known


@dataclass
class _Recent:
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    typical: float = 0.0  # below the median: what is odd about single passes only makes them longer
    at: int = 0  # the pass of the last one

    def add(self, seconds: float, at: int) -> None:
        self.seconds.append(seconds)
        self.typical = sorted(self.seconds)[(len(self.seconds) - 1) // 3]
        self.at = at


class GuessTimes:
    """Seconds of passes of a model that guesses."""

    def __init__(self) -> None:
        self._passes: dict[int, _Recent] = {}  # by sequences; the first of each is not counted, as in StepCosts
        self._token: _Recent | None = None  # of text that it lacks, the first likewise

    def passed(self, sequences: int, tokens: int, seconds: float) -> None:
        if tokens <= _NEAR * sequences:
            if sequences in self._passes:
                self._passes[sequences].add(seconds, 0)
            else:
                self._passes[sequences] = _Recent()
        elif self._token is not None:
            self._token.add(seconds / tokens, 0)
        else:
            self._token = _Recent()

    def passes(self, most: int) -> list[float]:
        """Of 0 .. ``most`` sequences; between and beyond those that were seen as the nearest ones say, or 0.0."""
        known = [(n, recent.typical) for n, recent in sorted(self._passes.items()) if recent.seconds]
        if not known:
            return [0.0] * (most + 1)
        seconds = np.interp(np.arange(1, most + 1), [n for n, _ in known], [t for _, t in known])
        return [0.0, *seconds.tolist()]

    def behind(self, tokens: int) -> float:
        """Until a sequence that lacks so many tokens can be guessed for; a few are computed with the first guess."""
        return 0.0 if tokens <= _NEAR or self._token is None else tokens * self._token.typical


@dataclass(frozen=True)
class Price:
    """What guesses take before they are checked, in seconds; those of look-up take nothing.

    ``passes[n]``: a pass that guesses one token of each of n sequences (0.0: not known yet). By sequence, ``behind``:
    until its next token can be guessed; ``ahead``: how many tokens it is expected to get yet.
    """

    passes: Sequence[float]
    behind: Sequence[float]
    ahead: Sequence[int]


class Policy(Protocol):
    """How much is guessed and checked."""

    def lengths(self, rates: Sequence[float], offered: Sequence[int], spare: int,
                price: Price | None = None) -> list[int]:
        """How many of the ``offered`` tokens of each sequence to check, ``spare`` in all at most, given the chance of
        each token to be right when those before it are. ``price``: they are yet to be guessed, and that takes time."""

    def passed(self, sequences: int, tokens: int, seconds: float, guessing: float = 0.0) -> None:
        """A step of so many sequences and tokens, guesses included, took so long, ``guessing`` of it to guess."""


class AdaptivePolicy:
    """Checks as many guesses as give the most tokens per second, by measured times and measured luck, or none.

    A width that was not measured lately is tried when it would gain if it cost no more than the next narrower one that
    was, narrow ones first. Where guesses have a price, nothing is learnt of their luck unless they are made: so while
    none pays, those of one sequence are tried now and then, if they would pay at the best of luck. What tries lose
    against what is known to be best is held below a hundredth of the time. So this can't be much slower than no
    guessing, whatever the machine does.
    """

    def __init__(self) -> None:
        self._costs = StepCosts()
        self._trial: _Trial | None = None
        self._spent = self._lost = 0.0  # seconds of all passes, and those that tries lost

    def lengths(self, rates: Sequence[float], offered: Sequence[int], spare: int,
                price: Price | None = None) -> list[int]:
        sequences = len(rates)
        lengths = [0] * sequences
        self._trial = None
        costs = self._costs.of(sequences)
        if sequences not in costs:
            return lengths
        followed = offered
        if price is not None:
            each = costs[sequences].seconds / sequences
            followed = [n if _worth_following(rates[at], n, each, price.behind[at], price.ahead[at]) else 0
                        for at, n in enumerate(offered)]
        # A sequence's guesses get less likely one by one, so any beginning of this list is a beginning of each draft.
        gains = [(rate**n, at) for at, rate in enumerate(rates) for n in range(1, followed[at] + 1)]
        gains.sort(reverse=True)
        del gains[spare:]
        if sum(gain for gain, _ in gains) > _MARGIN * sequences:
            plan = _Plan.of(sequences, gains, price)
            for _, at in gains[: self._best(plan, costs)]:
                lengths[at] += 1
        if price is not None and self._trial is None and not any(lengths):
            self._hope(lengths, offered, spare, price, costs)
        return lengths

    def passed(self, sequences: int, tokens: int, seconds: float, guessing: float = 0.0) -> None:
        self._spent += seconds
        counts, trial = self._costs.record(sequences, tokens, seconds - guessing), self._trial
        if counts and trial is not None and trial.width in (None, tokens):
            self._lost += max(seconds - trial.worth, 0.0)
        self._trial = None

    def _best(self, plan: _Plan, costs: dict[int, Cost]) -> int:
        """How many guesses to check."""
        sequences, tokens = plan.sequences, plan.tokens
        reach = min(len(tokens) - 1, list(costs)[-1] - sequences)
        speed = tokens[: reach + 1] / (_between(costs, sequences, reach) + plan.guessing[: reach + 1])
        best = int(speed.argmax())
        if speed[best] <= (1 + _MARGIN) * speed[0]:
            best = 0
        if self._lost > _TRYING * self._spent:
            return best
        tried = 0 if best and not costs[sequences].fresh else self._promising(plan, costs, float(speed[best]))
        if tried is None:
            return best
        self._trial = _Trial(sequences + tried, float(tokens[tried] / speed[best]))
        return tried

    def _promising(self, plan: _Plan, costs: dict[int, Cost], speed: float) -> int | None:
        """How many guesses are worth a try beside what gives ``speed``; None: no number of them."""
        sequences, tokens = plan.sequences, plan.tokens
        fresh = [width for width, cost in costs.items() if cost.fresh or width == sequences]
        narrower = np.searchsorted(fresh, np.arange(sequences, sequences + len(tokens)), side="right") - 1
        hoped = tokens / (np.array([costs[width].seconds for width in fresh])[narrower] + plan.guessing)
        better = [n for n in np.flatnonzero(hoped > (1 + _MARGIN) * speed).tolist() if sequences + n not in fresh]
        return better[min(sequences // 2, len(better) - 1)] if better else None

    def _hope(self, lengths: list[int], offered: Sequence[int], spare: int, price: Price,
              costs: dict[int, Cost]) -> None:
        """Tries guesses of the sequence that they take the least for, where they may pay and there is time to lose."""
        at = min((at for at, n in enumerate(offered) if n), key=lambda at: price.behind[at], default=None)
        if at is None:
            return
        sequences = len(offered)
        plan = _Plan.of(sequences, [(_HOPED**n, at) for n in range(1, min(offered[at], spare) + 1)], price)
        seconds = _between(costs, sequences, len(plan.tokens) - 1) + plan.guessing
        speed = plan.tokens / seconds
        tried = int(speed.argmax())
        loss = price.behind[at] + float(seconds[tried] - seconds[0])
        if speed[tried] > (1 + _MARGIN) * speed[0] and self._lost + loss <= _TRYING * self._spent:
            lengths[at] = tried
            self._trial = _Trial(None, float(seconds[0]))


class _Trial(NamedTuple):
    width: int | None  # tokens; None: whatever the step comes to
    worth: float  # seconds that its tokens take the best known way


class _Plan(NamedTuple):
    """Guesses in the order in which they would be checked: by their number, what to expect of a pass."""

    sequences: int
    tokens: np.ndarray  # f64[n + 1]: tokens that come of it
    guessing: np.ndarray  # f64[n + 1]: seconds that the guesses take to make

    @classmethod
    def of(cls, sequences: int, gains: Sequence[tuple[float, int]], price: Price | None) -> _Plan:
        """``gains``: of each guess the chance that a token comes of it, and whose it is."""
        guessing = np.zeros(len(gains) + 1)
        if price is not None:
            lengths, deep = [0] * sequences, [0] * (len(gains) + 1)  # guesses by sequence; sequences by pass
            for n, (_, at) in enumerate(gains, 1):
                depth = lengths[at]
                more = price.passes[deep[depth] + 1] - price.passes[deep[depth]]
                guessing[n] = guessing[n - 1] + max(more, 0.0)
                lengths[at] += 1
                deep[depth] += 1
        return cls(sequences, sequences + np.cumsum([0.0, *(gain for gain, _ in gains)]), guessing)


def _between(costs: dict[int, Cost], sequences: int, most: int) -> np.ndarray:
    """f64[most + 1]: seconds of a pass with so many guesses, between and beyond the widths that were measured."""
    wanted = np.arange(sequences, sequences + most + 1)
    return np.interp(wanted, list(costs), [cost.seconds for cost in costs.values()])


def _worth_following(rate: float, offered: int, each: float, behind: float, ahead: int) -> bool:
    """Whether to spend ``behind`` seconds so that a sequence's tokens can be guessed, which take ``each`` seconds
    without: no more than half of what the guesses may save of the tokens ``ahead``, for they have to be made, too."""
    gain = sum(rate**n for n in range(1, offered + 1))
    return behind <= 0.5 * ahead * each * gain / (1 + gain)
