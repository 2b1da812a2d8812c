"""Where paired ratios lie: Hodges-Lehmann, with the distribution-free bounds of the signed-rank test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kforge.harness.judge import walsh_averages


@dataclass(frozen=True)
class Location:
    """Of ratios, as ratios minus one; the bounds are one-sided, each at ``error``."""

    gain: float
    lower: float
    upper: float


def locate(ratios: Sequence[float], error: float = 0.025) -> Location:
    """Robust location of the log ratios. Bounds: ordered Walsh averages at the normal approximation of the signed-rank
    statistic (Hollander and Wolfe, Nonparametric Statistical Methods, 3.7); they are the extremes for few pairs."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    n = len(logs)
    walsh = np.sort(walsh_averages(logs))
    mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    k = max(int(mean - NormalDist().inv_cdf(1 - error) * deviation), 0)
    return Location(math.expm1(float(np.median(walsh))), math.expm1(walsh[k]), math.expm1(walsh[len(walsh) - 1 - k]))
