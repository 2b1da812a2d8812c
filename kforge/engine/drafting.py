"""Speculative decoding: guesses of the next tokens, and whether checking them pays.

A pass over 1 + k tokens of a sequence, the last one and k guesses, gives the logits after each of them. Tokens are
chosen from these rows one after the other, as they would be without guesses, for as long as the choice is what was
guessed; so the text is the same to the bit, and a pass gives between 1 and k + 1 tokens of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from kforge.core.errors import KforgeError
from kforge.engine import request

MAX_DRAFT = 8  # tokens guessed at once, per sequence
MAX_NGRAM, MIN_NGRAM = 4, 2

_MARGIN = 0.05  # expected gain below which a wider pass is not worth it
_TRYING = 0.01  # part of the time that measuring anew may cost
_SAMPLES = 5  # times kept of each width
_PLAIN_FRESH, _WIDE_FRESH = 32, 128  # passes after which the time of a plain, of a wider one is measured anew
_DECAY = 0.9  # of what is known of a sequence's guesses, with each pass
_PRIOR_WEIGHT = 2.0  # guesses that the engine's average counts for in a sequence's own


class Lookup(Protocol):
    """Guesses how one sequence goes on."""

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        """At most ``k`` tokens after ``tokens``, which are those of the call before with more at their end."""


class PromptLookup:
    """Guesses that what followed the last tokens when they were last seen, in prompt or answer, follows again.

    The longest of the last ``max_ngram`` .. ``min_ngram`` tokens that occurred before decides. Text that is quoted,
    edited or repeated is full of such places (prompt look-up decoding, Saxena 2023). One object per sequence: every
    token is indexed once, so a call costs what is new since the one before.
    """

    def __init__(self, max_ngram: int = MAX_NGRAM, min_ngram: int = MIN_NGRAM) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise KforgeError("The shortest n-gram must have at least one token and the longest no fewer, "
                              f"got {min_ngram} and {max_ngram}.")
        # By n, the longest first: where what follows an n-gram's last occurrence begins.
        self._after: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(max_ngram, min_ngram - 1, -1)}
        self._indexed = 0

    def propose(self, tokens: Sequence[int], k: int) -> list[int]:
        end = len(tokens)
        for n, after in self._after.items():
            for at in range(max(self._indexed, n), end):
                after[tuple(tokens[at - n : at])] = at
        self._indexed = end
        for n, after in self._after.items():
            at = after.get(tuple(tokens[-n:]), end)
            if at < end:
                draft = list(tokens[at : at + k])
                while len(draft) < k:  # the guess itself is what followed: a period goes on
                    draft.append(draft[at - end])
                return draft
        return []


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


class Policy(Protocol):
    """How much of what was guessed is checked."""

    def lengths(self, rates: Sequence[float], offered: Sequence[int], spare: int) -> list[int]:
        """How many of the ``offered`` tokens of each sequence to check, ``spare`` in all at most, given the chance of
        each token to be right when those before it are."""

    def passed(self, sequences: int, tokens: int, seconds: float) -> None:
        """A pass of so many sequences and tokens, guesses included, took so long."""


class AdaptivePolicy:
    """Checks as many guesses as give the most tokens per second, by measured times and measured luck, or none.

    A width that was not measured lately is tried when it would gain if it cost no more than the next narrower one that
    was, narrow ones first. What tries lose against what is known to be best is held below a hundredth of the time. So
    this can't be much slower than no guessing, whatever the machine does.
    """

    def __init__(self) -> None:
        self._costs = StepCosts()
        self._trial: _Trial | None = None
        self._spent = self._lost = 0.0  # seconds of all passes, and those that tries lost

    def lengths(self, rates: Sequence[float], offered: Sequence[int], spare: int) -> list[int]:
        sequences = len(rates)
        lengths = [0] * sequences
        self._trial = None
        # A sequence's guesses get less likely one by one, so any beginning of this list is a beginning of each draft.
        gains = [(rate**n, at) for at, rate in enumerate(rates) for n in range(1, offered[at] + 1)]
        gains.sort(reverse=True)
        del gains[spare:]
        if sum(gain for gain, _ in gains) <= _MARGIN * sequences:
            return lengths
        costs = self._costs.of(sequences)
        if sequences in costs:
            tokens = sequences + np.cumsum([0.0, *(gain for gain, _ in gains)])
            for _, at in gains[: self._best(sequences, tokens, costs)]:
                lengths[at] += 1
        return lengths

    def passed(self, sequences: int, tokens: int, seconds: float) -> None:
        self._spent += seconds
        counts = self._costs.record(sequences, tokens, seconds)
        if counts and self._trial is not None and tokens == self._trial.width:
            self._lost += max(seconds - self._trial.worth, 0.0)
        self._trial = None

    def _best(self, sequences: int, tokens: np.ndarray, costs: dict[int, Cost]) -> int:
        """How many guesses to check, where ``tokens[n]`` are to be expected of a pass that checks n."""
        widths = list(costs)
        reach = min(len(tokens) - 1, widths[-1] - sequences)
        seconds = np.interp(np.arange(sequences, sequences + reach + 1), widths, [c.seconds for c in costs.values()])
        speed = tokens[: reach + 1] / seconds
        best = int(speed.argmax())
        if speed[best] <= (1 + _MARGIN) * speed[0]:
            best = 0
        if self._lost > _TRYING * self._spent:
            return best
        tried = 0 if best and not costs[sequences].fresh else self._promising(tokens, costs, float(speed[best]))
        if tried is None:
            return best
        self._trial = _Trial(sequences + tried, float(tokens[tried] / speed[best]))
        return tried

    def _promising(self, tokens: np.ndarray, costs: dict[int, Cost], speed: float) -> int | None:
        """How many guesses are worth a try beside what gives ``speed``; None: no number of them."""
        sequences = next(iter(costs))
        fresh = [width for width, cost in costs.items() if cost.fresh or width == sequences]
        narrower = np.searchsorted(fresh, np.arange(sequences, sequences + len(tokens)), side="right") - 1
        hoped = tokens / np.array([costs[width].seconds for width in fresh])[narrower]
        better = [n for n in np.flatnonzero(hoped > (1 + _MARGIN) * speed).tolist() if sequences + n not in fresh]
        return better[min(sequences // 2, len(better) - 1)] if better else None


class _Trial(NamedTuple):
    width: int  # tokens
    worth: float  # seconds that its tokens take the best known way


class Speculation:
    """Guesses for all sequences of an engine (a ``kforge.engine.scheduler.Drafter``), and what became of them.

    Whether a guess would have been right is seen for nothing when it was not checked, by the token that came. So it
    costs nothing to notice that guessing would pay again.
    """

    def __init__(self, lookup: Callable[[], Lookup] = PromptLookup, policy: Policy | None = None,
                 max_draft: int = MAX_DRAFT) -> None:
        self.max_draft = max_draft
        self._lookup = lookup
        self._policy = policy or AdaptivePolicy()
        self._drafts: dict[int, _Drafted] = {}
        self._all = _Luck(accepted=1.0, tried=2.0)

    def propose(self, sequences: Sequence[request.Sequence], rooms: Sequence[int], spare: int) -> list[list[int]]:
        known = []
        for sequence, room in zip(sequences, rooms, strict=True):
            drafted = self._drafts.get(sequence.id)
            if drafted is None:
                drafted = self._drafts[sequence.id] = _Drafted(self._lookup())
            drafted.offer = drafted.lookup.propose(sequence.tokens, max(min(room, self.max_draft), 0))
            known.append(drafted)
        usual = self._all.rate(0.5)
        rates = [drafted.luck.rate(usual) for drafted in known]
        lengths = self._policy.lengths(rates, [len(drafted.offer) for drafted in known], spare)
        return [drafted.offer[:length] for drafted, length in zip(known, lengths, strict=True)]

    def learn(self, sequence: request.Sequence, produced: int) -> None:
        """The sequence's last ``produced`` tokens are what came where the last offer was for."""
        drafted = self._drafts.get(sequence.id)
        if drafted is None or not drafted.offer:
            return
        tried = right = 0
        for guess, token in zip(drafted.offer, sequence.tokens[len(sequence.tokens) - produced :], strict=False):
            tried += 1
            right += guess == token
            if guess != token:
                break
        drafted.offer = []
        for luck in (drafted.luck, self._all):
            luck.add(right, tried)

    def passed(self, sequences: int, tokens: int, seconds: float) -> None:
        """A step that only decoded took so long, everything included."""
        self._policy.passed(sequences, tokens, seconds)

    def drop(self, sequence: int) -> None:
        """The sequence is gone."""
        self._drafts.pop(sequence, None)


@dataclass
class _Luck:
    accepted: float = 0.0
    tried: float = 0.0

    def rate(self, usual: float) -> float:
        """Chance of a guess to be right, between 0 and 1, both excluded."""
        rate = (self.accepted + _PRIOR_WEIGHT * usual) / (self.tried + _PRIOR_WEIGHT)
        return min(max(rate, 0.01), 0.99)

    def add(self, accepted: int, tried: int) -> None:
        self.accepted = _DECAY * self.accepted + accepted
        self.tried = _DECAY * self.tried + tried


@dataclass
class _Drafted:
    lookup: Lookup
    offer: list[int] = field(default_factory=list)
    luck: _Luck = field(default_factory=_Luck)


def guessing(name: str) -> Speculation:
    """What an engine's option asks for. ``KforgeError`` for a way of guessing that there is not."""
    if name != "ngram":
        raise KforgeError(f"There is no speculation '{name}': use ngram, or leave it out.")
    return Speculation()
