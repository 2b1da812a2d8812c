"""Weights as kernels want them: packed once, in huge pages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from kforge.core.layout import Layout
from kforge.core.workload import Problem
from kforge.models.graph import Call
from kforge.models.model import Model
from kforge.models.roles import Matrix, WeightRef
from kforge.native import Arena
from kforge.operators import layouts

_CHUNK = 64 << 20  # arenas grow by this; a larger tensor gets one of its own size

RowsOf = Callable[[Problem], int]


class Weights:
    """Packed matrices and float32 vectors by (tensors, layout): a tied head and the embedding share one copy.

    ``shared``: in memory that another process can map; ``arenas`` are all that it is to map.
    """

    def __init__(self, model: Model, shared: bool = False) -> None:
        self._model = model
        self.shared = shared
        self.arenas = [Arena(_CHUNK, shared)]
        self._twin: Weights | None = None
        self._packed: dict[tuple[tuple[WeightRef, ...], Layout | None], np.ndarray] = {}

    def matrix(self, refs: tuple[WeightRef, ...], layout: Layout, experts: int = 1) -> np.ndarray:
        """u8[bytes]: the matrices one below the other, packed. Of ``experts``: those of each expert below one another
        and packed for themselves, expert by expert."""
        key = (refs, layout)
        if key not in self._packed:
            parts = [self._model.tensor(Matrix(ref.role), ref.layer) for ref in refs]
            size = layouts.packed_bytes(parts[0].format, sum(p.n for p in parts) // experts, parts[0].k, layout)
            place = self._room((experts * size,), np.dtype(np.uint8))
            for e in range(experts):
                mine = [p.rows(e * p.n // experts, (e + 1) * p.n // experts) for p in parts]
                whole = mine[0] if len(mine) == 1 else layouts.concat(mine)
                place[e * size : (e + 1) * size] = layouts.pack(whole, layout)
            self._packed[key] = place
        return self._packed[key]

    def vector(self, refs: tuple[WeightRef, ...]) -> np.ndarray:
        """f32[n]: the vectors one after the other; of experts f32[experts, n]."""
        key = (refs, None)
        if key not in self._packed:
            parts = [np.asarray(self._model.tensor(ref.role, ref.layer), np.float32) for ref in refs]
            whole = np.concatenate(parts, axis=-1)
            place = self._packed[key] = self._room(whole.shape, whole.dtype)
            place[...] = whole
        return self._packed[key]

    def for_executor(self, shared: bool) -> Weights:
        """These, or where another kind of memory is wanted a second copy, made once."""
        if shared == self.shared:
            return self
        if self._twin is None:
            self._twin = Weights(self._model, shared)
        return self._twin

    @property
    def bytes(self) -> int:
        return sum(a.nbytes for a in self._packed.values())

    def _room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        if self.arenas[-1].used + size + 4096 > self.arenas[-1].bytes:
            self.arenas.append(Arena(max(_CHUNK, size), self.shared))
        return self.arenas[-1].take(shape, dtype, page_aligned=True)


def with_rows(calls: list[Call], rows: RowsOf) -> list[Call]:
    """The calls with each packed weight's panel height filled in; calls that share a tensor share its height.

    A tied head decides for the embedding, which reads a row a token where the head reads everything.
    """
    heights = {call.weights: rows(call.problem.without_layout) for call in calls if call.problem.operator == "linear"}
    out = []
    for call in calls:
        if "rows" in dict(call.problem.static):
            height = heights.get(call.weights) or rows(call.problem.without_layout)
            call = dataclasses.replace(call, problem=call.problem.with_rows(height))
        out.append(call)
    return out
