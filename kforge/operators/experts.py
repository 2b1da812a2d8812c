"""Which slot is whose: choices of experts, their grouping, and the experts' matrices one behind the other.

Slot t * k + j is the j-th choice of token t. *Grouped* means slots by expert, ascending within each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kforge.core.dtypes import WeightFormat
from kforge.core.layout import Layout
from kforge.operators import layouts
from kforge.operators.base import Distribution
from kforge.operators.weights import QuantizedWeight

if TYPE_CHECKING:
    import numpy as np

_CROWD = 0.75  # of the tokens
_SURE = 1e3  # a preference that no chance outweighs


@dataclass(frozen=True, eq=False)
class Grouping:
    """``order`` int32 [slots]; expert e has ``order[start[e]:start[e + 1]]``, ``start`` being int32 [E + 1]."""

    order: np.ndarray
    start: np.ndarray

    @property
    def ids(self) -> np.ndarray:
        """int32 [slots]: the expert of each slot."""
        import numpy as np

        of = np.empty(len(self.order), np.int32)
        of[self.order] = np.arange(len(self.start) - 1, dtype=np.int32).repeat(np.diff(self.start))
        return of

    def slots(self, expert: int) -> np.ndarray:
        """Those of one expert, ascending."""
        return self.order[self.start[expert]:self.start[expert + 1]]


def grouped(ids: np.ndarray, experts: int) -> Grouping:
    """``ids``: the expert of each slot, in any shape."""
    import numpy as np

    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    start = np.searchsorted(flat[order], np.arange(experts + 1))
    return Grouping(order.astype(np.int32), start.astype(np.int32))


def touched(tokens: int, experts: int, k: int) -> float:
    """How many experts these tokens choose, on average, when all choices are equally likely."""
    return experts * (1 - (1 - k / experts) ** tokens)


class Crowding(StrEnum):
    """How tokens fall on experts. Cases take them in turn, from seed to seed; timed calls are even."""

    EVEN = "even"  # all experts equally likely
    ONE = "one"  # all tokens have the same k
    ENDS = "ends"  # only the first few, or the last few, have any
    MOST = "most"  # most tokens have the same k, the others any

    @classmethod
    def of(cls, seed: int, distribution: Distribution) -> Crowding:
        return cls.EVEN if distribution is Distribution.NORMAL else list(cls)[seed % len(cls)]


def draw(rng: np.random.Generator, tokens: int, experts: int, k: int, crowding: Crowding) -> np.ndarray:
    """int32 [T, k]: distinct experts for each token."""
    import numpy as np

    preference = np.zeros((tokens, experts))
    if crowding in (Crowding.ONE, Crowding.MOST):
        crowd = crowding is Crowding.ONE or rng.random((tokens, 1)) < _CROWD
        preference += _SURE * crowd * np.isin(np.arange(experts), rng.permutation(experts)[:k])
    elif crowding is Crowding.ENDS:
        few = min(experts, k + 1)
        preference[:, slice(None, few) if rng.integers(2) else slice(-few, None)] = _SURE
    # The largest of Gumbel variables shifted by log p are a draw without replacement by p.
    return np.argsort(-(preference + rng.gumbel(size=(tokens, experts))), axis=1)[:, :k].astype(np.int32)


def packed_bytes(experts: int, format: WeightFormat, n: int, k: int, layout: Layout) -> int:
    """Size of all experts' packed matrices."""
    return experts * layouts.packed_bytes(format, n, k, layout)


def pack(weight: QuantizedWeight, experts: int, layout: Layout) -> np.ndarray:
    """uint8: matrix [E * N, K] as each expert's [N, K] packed for itself, one behind the other."""
    import numpy as np

    n = weight.n // experts
    return np.concatenate([layouts.pack(weight.rows(e * n, (e + 1) * n), layout) for e in range(experts)])


def matrix(data: np.ndarray, expert: int, format: WeightFormat, n: int, k: int, layout: Layout) -> QuantizedWeight:
    """One expert's [N, K] out of what ``pack`` made."""
    size = layouts.packed_bytes(format, n, k, layout)
    return layouts.unpack(data[expert * size:(expert + 1) * size], format, n, k, layout)
