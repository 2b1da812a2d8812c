"""Speculative decoding, and guesses by look-up.

A pass over 1 + k tokens of a sequence, the last one and k guesses, gives the logits after each of them. Tokens are
chosen from these rows one after the other, as they would be without guesses, for as long as the choice is what was
guessed; so the text is the same to the bit, and a pass gives between 1 and k + 1 tokens of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kforge.core.errors import KforgeError
from kforge.engine import request
from kforge.engine.luck import TrackRecord
from kforge.engine.pacing import AdaptivePolicy, Policy
from kforge.engine.scheduler import Drafter

MAX_DRAFT = 8  # tokens guessed at once, per sequence
MAX_NGRAM, MIN_NGRAM = 4, 2


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


class Guesser(Drafter, Protocol):
    """Guesses for all sequences of an engine, and hears what became of them."""

    max_draft: int  # tokens of one sequence at once

    def learn(self, sequence: request.Sequence, produced: int) -> None:
        """The sequence's last ``produced`` tokens are what came where the last draft was for."""

    def passed(self, sequences: int, tokens: int, seconds: float) -> None:
        """A step that only decoded took so long, everything included."""

    def drop(self, sequence: int) -> None:
        """The sequence is gone."""


class Speculation:
    """Guesses by look-up (a ``Guesser``).

    Whether a guess would have been right is seen for nothing when it was not checked, by the token that came. So it
    costs nothing to notice that guessing would pay again.
    """

    def __init__(self, lookup: Callable[[], Lookup] = PromptLookup, policy: Policy | None = None,
                 max_draft: int = MAX_DRAFT) -> None:
        self.max_draft = max_draft
        self._lookup = lookup
        self._policy = policy or AdaptivePolicy()
        self._lookups: dict[int, Lookup] = {}
        self._record = TrackRecord()

    def propose(self, sequences: Sequence[request.Sequence], rooms: Sequence[int], spare: int) -> list[list[int]]:
        offers = []
        for sequence, room in zip(sequences, rooms, strict=True):
            lookup = self._lookups.get(sequence.id)
            if lookup is None:
                lookup = self._lookups[sequence.id] = self._lookup()
            offers.append(lookup.propose(sequence.tokens, max(min(room, self.max_draft), 0)))
            self._record.offer(sequence.id, offers[-1])
        rates = [self._record.rate(sequence.id) for sequence in sequences]
        lengths = self._policy.lengths(rates, [len(offer) for offer in offers], spare)
        return [offer[:length] for offer, length in zip(offers, lengths, strict=True)]

    def learn(self, sequence: request.Sequence, produced: int) -> None:
        self._record.learn(sequence, produced)

    def passed(self, sequences: int, tokens: int, seconds: float) -> None:
        self._policy.passed(sequences, tokens, seconds)

    def drop(self, sequence: int) -> None:
        self._lookups.pop(sequence, None)
        self._record.drop(sequence)
