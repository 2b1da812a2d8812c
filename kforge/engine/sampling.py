"""From logits to a token, and to log probabilities.

A row is always treated alone, with arrays of one shape: vector and tail paths of numpy's ``exp`` may differ in the last
bit, so a row inside a larger array could come out differently, and sampled text must not depend on the batch. (Under a
constraint the shape is the number of allowed tokens, a function of the answer so far.)
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from kforge.core.errors import KforgeError
from kforge.engine.request import SamplingParams

_MASK = (1 << 64) - 1
_HEAD = 1024  # candidates for top_p that are sorted first; a full sort follows only when their mass does not reach it


class Distribution(NamedTuple):
    """What a token is drawn from: the ids that survived constraint and filters, ascending, and their weights f64[n],
    which are proportional to their probabilities. ``ids`` None: the whole vocabulary."""

    ids: np.ndarray | None
    weights: np.ndarray

    def id(self, at: int) -> int:
        return at if self.ids is None else int(self.ids[at])


class Purpose(IntEnum):
    """What noise is for: what is drawn for one purpose says nothing of what is drawn for another."""

    TOKEN = 0
    ACCEPT = 1  # whether a guess is accepted
    RESIDUAL = 2  # the token in the place of a refused one


def uniform(seed: int, position: int, purpose: Purpose = Purpose.TOKEN) -> float:
    """Noise in [0, 1), a pure function of the request's seed, the token's position, and what it is for: neither batch
    nor step enter.

    Rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014), the top 53 bits taken.
    """
    key = _mix(seed & _MASK)
    if purpose:
        key = _mix((key + purpose * 0xD1B54A32D192ED03) & _MASK)  # an odd constant, for the keys to differ in all bits
    value = _mix((key + position * 0x9E3779B97F4A7C15) & _MASK)
    return (value >> 11) * 2.0**-53


def sample(logits: np.ndarray, params: SamplingParams, position: int, allowed: np.ndarray | None = None) -> int:
    """Token for ``position`` from its logits f32[V]: the inverse of the filtered distribution's sum at ``uniform``.

    ``temperature`` 0 takes the largest logit (lowest id among equals), as the argmax operator does. ``allowed``: see
    ``distribution``.
    """
    if params.greedy:
        ids = _allowed_ids(allowed)
        return int(logits.argmax()) if ids is None else int(ids[logits[ids].argmax()])
    return draw(distribution(logits, params, allowed), uniform(params.seed, position))


def draw(found: Distribution, noise: float) -> int:
    """The inverse of the distribution's sum at ``noise``, which is in [0, 1)."""
    total = np.cumsum(found.weights)
    at = int(np.searchsorted(total, noise * total[-1], side="right"))
    return found.id(min(at, len(total) - 1))


def distribution(logits: np.ndarray, params: SamplingParams, allowed: np.ndarray | None = None) -> Distribution:
    """The distribution that ``params`` make of logits f32[V]; ``params.temperature`` must be above 0.

    ``allowed`` bool[n], n <= V: the tokens that a constraint allows, those from n on not among them; None: all.
    Temperature and filters see these alone. Raises ``KforgeError`` when it allows none.
    """
    ids = _allowed_ids(allowed)
    scaled = (logits if ids is None else logits[ids]).astype(np.float64)
    scaled -= scaled.max()
    with np.errstate(over="ignore"):  # the least of temperatures leave the most probable tokens alone, which is right
        scaled /= params.temperature
    kept = _kept(scaled, params)
    weights = np.exp(scaled if kept is None else scaled[kept])
    if kept is not None:
        ids = kept if ids is None else ids[kept]
    return Distribution(ids, weights)


def log_probabilities(logits: np.ndarray, token: int, top: int) -> tuple[tuple[int, float], ...]:
    """(token, natural logarithm of its probability) from logits f32[V] at temperature 1 without any filter: ``token``
    first, then the ``top`` most probable ones, best first (lower ids first among equals), ``token`` perhaps among them.
    """
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()
    scaled -= np.log(np.exp(scaled).sum())
    chosen = ((int(token), float(scaled[token])),)
    if top <= 0:
        return chosen
    best = _top_k(scaled, top) if top < len(scaled) else np.arange(len(scaled))
    best = best[np.argsort(-scaled[best], kind="stable")]
    return chosen + tuple((int(i), float(scaled[i])) for i in best)


def _allowed_ids(allowed: np.ndarray | None) -> np.ndarray | None:
    """Ids that a constraint allows, ascending (None: all)."""
    if allowed is None:
        return None
    ids = np.flatnonzero(allowed)
    if not len(ids):
        raise KforgeError("The request's constraint allows no token at all.")
    return ids


def _kept(scaled: np.ndarray, params: SamplingParams) -> np.ndarray | None:
    """Indices that survive the filters, ascending (None: all). ``scaled`` has its maximum at 0."""
    kept = _top_k(scaled, params.top_k) if 0 < params.top_k < len(scaled) else None
    if params.top_p < 1.0:
        kept = _top_p(scaled, kept, params.top_p)
    if params.min_p > 0.0:
        # Relative to the most probable token, whose weight is exp(0).
        ids = np.arange(len(scaled)) if kept is None else kept
        kept = ids[scaled[ids] >= np.log(params.min_p)]
    return kept


def _top_k(scaled: np.ndarray, k: int) -> np.ndarray:
    """The k largest, lower ids first among equals; ascending."""
    threshold = np.partition(scaled, len(scaled) - k)[len(scaled) - k]
    above = np.flatnonzero(scaled > threshold)
    equal = np.flatnonzero(scaled == threshold)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _top_p(scaled: np.ndarray, kept: np.ndarray | None, top_p: float) -> np.ndarray:
    values = scaled if kept is None else scaled[kept]
    wanted = top_p * np.exp(values).sum()
    head = np.arange(len(values))
    if len(values) > _HEAD:
        largest = _top_k(values, _HEAD)
        if np.exp(values[largest]).sum() >= wanted:
            head = largest
    ordered = head[np.argsort(-values[head], kind="stable")]
    mass = np.cumsum(np.exp(values[ordered]))
    count = int(np.searchsorted(mass, wanted, side="left")) + 1
    chosen = np.sort(ordered[:count])
    return chosen if kept is None else kept[chosen]


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
