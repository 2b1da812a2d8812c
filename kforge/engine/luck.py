"""How often guesses were right."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.engine import request

_DECAY = 0.9  # of what is known of a sequence's guesses, with each pass
_FADING = 0.995  # of the same, with each pass that guesses nothing
_PRIOR_WEIGHT = 2.0  # guesses that the engine's average counts for in a sequence's own


class TrackRecord:
    """How often guesses were right, for each sequence and for all."""

    def __init__(self) -> None:
        self._all = _Luck(accepted=1.0, tried=2.0)
        self._lucks: dict[int, _Luck] = {}
        self._offers: dict[int, list[int]] = {}

    def rate(self, sequence: int) -> float:
        """Chance of the sequence's next guess to be right, between 0 and 1, both excluded."""
        usual = self._all.rate(0.5)
        luck = self._lucks.get(sequence)
        return usual if luck is None else luck.rate(usual)

    def offer(self, sequence: int, tokens: list[int]) -> None:
        """What is guessed to come next, whether it is going to be checked or not."""
        self._offers[sequence] = tokens

    def learn(self, sequence: request.Sequence, produced: int) -> None:
        """The sequence's last ``produced`` tokens are what came where the last offer was for."""
        offer = self._offers.pop(sequence.id, None)
        if not offer:
            return
        tried = right = 0
        for guess, token in zip(offer, sequence.tokens[len(sequence.tokens) - produced :], strict=False):
            tried += 1
            right += guess == token
            if guess != token:
                break
        for luck in (self._lucks.setdefault(sequence.id, _Luck()), self._all):
            luck.add(right, tried)

    def fade(self, sequence: int) -> None:
        """Nothing was guessed: what is known of the sequence's luck gets old."""
        if luck := self._lucks.get(sequence):
            luck.accepted, luck.tried = _FADING * luck.accepted, _FADING * luck.tried

    def drop(self, sequence: int) -> None:
        self._lucks.pop(sequence, None)
        self._offers.pop(sequence, None)


@dataclass
class _Luck:
    accepted: float = 0.0
    tried: float = 0.0

    def rate(self, usual: float) -> float:
        rate = (self.accepted + _PRIOR_WEIGHT * usual) / (self.tried + _PRIOR_WEIGHT)
        return min(max(rate, 0.01), 0.99)

    def add(self, accepted: int, tried: int) -> None:
        self.accepted = _DECAY * self.accepted + accepted
        self.tried = _DECAY * self.tried + tried
