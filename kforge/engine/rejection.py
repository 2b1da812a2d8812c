"""Rejection sampling of guesses: a token that follows the target's distribution, however the guess came about.

A guess x was drawn from q, and p is the target's distribution in its place. It is accepted with probability
min(1, p(x) / q(x)); else the token is drawn from what p has and q lacks, max(p - q, 0). Together that is p, and no
other way of accepting guesses accepts more of them (Leviathan, Kalman and Matias 2023; Chen and others 2023).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kforge.engine.sampling import Distribution, Purpose, draw, uniform


class Guess(NamedTuple):
    """A guessed token and what it was drawn from; None: it was not drawn, so q has all of its mass at the token."""

    token: int
    drawn_from: Distribution | None


def verified(wanted: Distribution, guess: Guess, seed: int, position: int) -> int:
    """The token for ``position`` that ``wanted`` and the guess decide. It is the guess exactly if that is accepted."""
    p, q = _probability(wanted, guess.token), 1.0
    if guess.drawn_from is not None:
        q = _probability(guess.drawn_from, guess.token)
    # Without a division: q >= 0 may be tiny, and p >= q must accept whatever the noise is.
    if uniform(seed, position, Purpose.ACCEPT) * q < p:
        return guess.token
    return draw(_residual(wanted, guess), uniform(seed, position, Purpose.RESIDUAL))


def _residual(wanted: Distribution, guess: Guess) -> Distribution:
    """max(p - q, 0)."""
    left = wanted.weights / wanted.weights.sum()
    drawn_from = guess.drawn_from or Distribution(np.array([guess.token]), np.ones(1))
    left -= _at(drawn_from.ids, drawn_from.weights / drawn_from.weights.sum(), wanted, len(left))
    np.maximum(left, 0.0, out=left)
    if not left.any():  # p and q are the same but for rounding
        return wanted
    return Distribution(wanted.ids, left)


def _at(ids: np.ndarray | None, values: np.ndarray, wanted: Distribution, size: int) -> np.ndarray:
    """f64[size]: ``values`` of ``ids`` (None: 0, 1, 2 ...) in the places of ``wanted``'s weights; 0 elsewhere."""
    places = np.arange(size) if wanted.ids is None else wanted.ids
    found = np.zeros(size)
    if ids is None:
        inside = places < len(values)
        found[inside] = values[places[inside]]
    else:
        where = np.searchsorted(ids, places)
        inside = where < len(ids)
        inside[inside] = ids[where[inside]] == places[inside]
        found[inside] = values[where[inside]]
    return found


def _probability(of: Distribution, token: int) -> float:
    if of.ids is None:
        weight = of.weights[token] if token < len(of.weights) else 0.0
    else:
        at = int(np.searchsorted(of.ids, token))
        weight = of.weights[at] if at < len(of.ids) and of.ids[at] == token else 0.0
    return float(weight / of.weights.sum())
