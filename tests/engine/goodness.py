"""Whether counts are a sample of a distribution."""

from __future__ import annotations

import math

import numpy as np

LEAST = 5.0  # expected draws below which the chi-square distribution is no approximation: such cells are counted as one
QUANTILE = 3.0902  # of the normal distribution, 99.9 %


def chi_square(counts: np.ndarray, wanted: np.ndarray) -> float:
    """Pearson's statistic over its 99.9 % quantile, by Wilson and Hilferty's approximation (1931): a sample of
    ``wanted`` is above 1 once in a thousand times. With fixed seeds it is or it is not."""
    assert counts[wanted == 0].sum() == 0, "what cannot be was drawn"
    expected = wanted * counts.sum()
    small = expected < LEAST
    if small.any() and expected[small].sum() > 0:
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    else:
        counts, expected = counts[~small], expected[~small]
    free = len(expected) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic / (free * (1 - 2 / (9 * free) + QUANTILE * math.sqrt(2 / (9 * free))) ** 3)
