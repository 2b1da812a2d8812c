"""Buffers that hold two values, such as masks: part of the function, so that wherever they are drawn they hold these.

Other buffers are drawn as parameters are, since a norm's running statistics are as good as weights. A mask cannot be:
normal values in the place of zeros and -1e9 leave nothing of a softmax, and normal values equal no zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch

from kforge.importing.builder import Builder, Value
from kforge.operators.graph import Op

_LEAST = 16  # elements: two values of fewer may be two settings


@dataclass(frozen=True)
class Levels:
    """``low`` where an element is below ``between``, else ``high``. Normal draws of this mean and spread are below it
    as often as the buffer's own values are ``low``."""

    low: float
    high: float
    between: float
    mean: float
    spread: float

    @property
    def facts(self) -> dict[str, Any]:
        """Of a ``Given``."""
        return {"mean": self.mean, "spread": self.spread}

    def of(self, b: Builder, buffer: Value) -> Value:
        return b.choose(b.make(Op.LESS, buffer, self.between), self.low, self.high)


def levels(tensor: torch.Tensor) -> Levels | None:
    """Of float32 values, all of them one of two that are finite; None of any others."""
    if tensor.numel() < _LEAST or tensor.is_meta:
        return None
    low, high = float(tensor.min()), float(tensor.max())
    if low == high or not math.isfinite(low) or not math.isfinite(high):
        return None
    is_low = tensor == low
    if not bool((is_low | (tensor == high)).all()):
        return None
    # Drawn about the value that is nearer to zero and a little beside it: what lies far off is not needed there.
    anchor = min(low, high, key=abs)
    step = min(high - low, max(1.0, abs(anchor)))
    bottom = anchor if anchor == low else high - step
    share = float(is_low.double().mean())
    drawn = NormalDist(bottom + (1 - share) * step, step * math.sqrt(share * (1 - share)))
    between = float(torch.tensor(drawn.inv_cdf(share), dtype=torch.float32))
    return Levels(low, high, between if low < between <= high else high, drawn.mean, drawn.stdev)
