"""Quantiles of Student's t and of the beta distribution, from the regularised incomplete beta function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

_TINY = 1e-300


def incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly on the other side only
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), _TINY)
    fraction = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return front * fraction


@functools.cache
def student_t_quantile(p: float, degrees: int) -> float:
    """t with P(T <= t) = p, for p in (0, 1)."""
    if p < 0.5:
        return -student_t_quantile(1.0 - p, degrees)

    def below(t: float) -> float:
        return 1.0 - 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))

    high = 1.0
    while below(high) < p:
        high *= 2
    return _bisect(below, p, 0.0, high)


def proportion_upper(successes: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided upper confidence bound of a proportion (Clopper and Pearson 1934)."""
    if successes >= trials:
        return 1.0
    return _bisect(lambda x: incomplete_beta(successes + 1, trials - successes, x), confidence, 0.0, 1.0)


def proportion_lower(successes: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided lower confidence bound of a proportion (Clopper and Pearson 1934)."""
    return 1.0 - proportion_upper(trials - successes, trials, confidence)


def _bisect(increasing: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(100):
        middle = (low + high) / 2
        if increasing(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
