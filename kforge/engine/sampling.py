"""From logits to a token.

A row is always treated alone, with arrays of one shape: vector and tail paths of numpy's ``exp`` may differ in the last
bit, so a row inside a larger array could come out differently, and sampled text must not depend on the batch.
"""

from __future__ import annotations

import numpy as np

from kforge.engine.request import SamplingParams

_MASK = (1 << 64) - 1
_HEAD = 1024  # candidates for top_p that are sorted first; a full sort follows only when their mass does not reach it


def uniform(seed: int, position: int) -> float:
    """Noise in [0, 1), a pure function of the request's seed and the token's position: neither batch nor step enter.

    Two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014), the top 53 bits taken.
    """
    value = _mix((_mix(seed & _MASK) + position * 0x9E3779B97F4A7C15) & _MASK)
    return (value >> 11) * 2.0**-53


def sample(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    """Token for ``position`` from its logits f32[V]: the inverse of the filtered distribution's sum at ``uniform``.

    ``temperature`` 0 takes the largest logit (lowest id among equals), as the argmax operator does.
    """
    if params.greedy:
        return int(logits.argmax())
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()
    scaled /= params.temperature
    kept = _kept(scaled, params)
    weights = np.exp(scaled if kept is None else scaled[kept])
    total = np.cumsum(weights)
    at = int(np.searchsorted(total, uniform(params.seed, position) * total[-1], side="right"))
    at = min(at, len(total) - 1)
    return at if kept is None else int(kept[at])


def _kept(scaled: np.ndarray, params: SamplingParams) -> np.ndarray | None:
    """Ids that survive the filters, ascending (None: all). ``scaled`` has its maximum at 0."""
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
    ids = np.arange(len(scaled)) if kept is None else kept
    wanted = top_p * np.exp(scaled[ids]).sum()
    head = ids[_top_k(scaled[ids], _HEAD)] if len(ids) > _HEAD else ids
    if np.exp(scaled[head]).sum() < wanted:
        head = ids
    ordered = head[np.argsort(-scaled[head], kind="stable")]
    mass = np.cumsum(np.exp(scaled[ordered]))
    count = int(np.searchsorted(mass, wanted, side="left")) + 1
    return np.sort(ordered[:count])


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
