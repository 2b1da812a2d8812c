"""What the operators on the paged KV cache have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from kforge.core.dtypes import DType
from kforge.core.layout import Layout
from kforge.core.workload import Problem
from kforge.operators import numerics
from kforge.operators.base import Residency, Role, TensorSpec
from kforge.operators.kv_quantised import quantised

if TYPE_CHECKING:
    import numpy as np

CACHE_TYPES = (DType.F32, DType.BF16, DType.F16, DType.I8)  # in the order of spec/cache.h


@dataclass(frozen=True)
class KvProblem:
    """Static attributes of attention over a paged cache, typed. ``page``: tokens per page, a multiple of 16."""

    heads: int
    kv_heads: int
    d: int
    page: int
    dtype: DType

    @classmethod
    def of(cls, problem: Problem) -> Self:
        made = cls(problem.int("Hq"), problem.int("Hkv"), problem.int("D"), problem.int("P"), DType(problem.str("kv")))
        if made.heads % made.kv_heads or made.d % 2 or made.page % 16 or made.dtype not in CACHE_TYPES:
            raise ValueError(f"{problem.key}: Hq must be a multiple of Hkv, D even, P a multiple of 16, "
                             "kv f32, bf16, f16 or i8")
        return made

    @property
    def scaled(self) -> bool:
        """Whether k and v are integers, each position of each head with a scale of its own."""
        return self.dtype is DType.I8

    def cache_shapes(self, pages: int) -> dict[str, tuple[int, ...]]:
        """``paged`` version 1: k[pages, Hkv, D, P], so that lanes run over positions, and v[pages, Hkv, P, D]."""
        return {"k_cache": (pages, self.kv_heads, self.d, self.page),
                "v_cache": (pages, self.kv_heads, self.page, self.d)}

    def cache_tensors(self, pages: int, role: Role) -> list[TensorSpec]:
        """The cache in launch order: k and v, and where these are integers the scales of both, [pages, Hkv, P]."""
        layout = Layout.of("paged", 1, P=self.page)
        made = [TensorSpec(name, self.dtype, shape, role, Residency.STREAMED, layout)
                for name, shape in self.cache_shapes(pages).items()]
        shape = (pages, self.kv_heads, self.page)
        scales = ("k_scale", "v_scale") if self.scaled else ()
        return made + [TensorSpec(name, DType.F32, shape, role, Residency.STREAMED, layout) for name in scales]

    def position_bytes(self) -> int:
        """Bytes of one position of one head, k and v."""
        return 2 * (self.d * self.dtype.size + 4 * self.scaled)

    def widened(self, inputs: Mapping[str, np.ndarray], pages: Any = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """What k [n, Hkv, D, P] and v [n, Hkv, P, D] of these pages stand for, float64, exactly."""
        k, v = (numerics.widen(inputs[name][pages], self.dtype) for name in ("k_cache", "v_cache"))
        if self.scaled:
            k *= inputs["k_scale"][pages][:, :, None, :]
            v *= inputs["v_scale"][pages][:, :, :, None]
        return k, v

    def stored(self, k: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
        """float32 k [n, Hkv, D, P] and v [n, Hkv, P, D] as the cache has them, by tensor."""
        if not self.scaled:
            return {"k_cache": numerics.narrow(k, self.dtype), "v_cache": numerics.narrow(v, self.dtype)}
        (keys, k_scale), (values, v_scale) = quantised(k, axis=2), quantised(v, axis=3)
        return {"k_cache": keys, "v_cache": values, "k_scale": k_scale, "v_scale": v_scale}


@dataclass(frozen=True)
class AttentionProblem(KvProblem):
    """``window``: how many positions a query sees at most, the last of them its own; 0: all up to its own. ``sinks``:
    whether each query head has a logit that takes part in the softmax and has no value."""

    window: int = 0
    sinks: bool = False

    @classmethod
    def of(cls, problem: Problem) -> Self:
        window, sinks = problem.int("window"), problem.int("sinks")
        if window < 0 or sinks not in (0, 1):
            raise ValueError(f"{problem.key}: window is a number of positions or 0, sinks 0 or 1")
        return replace(super().of(problem), window=window, sinks=bool(sinks))

    def first_seen(self, position: int) -> int:
        """The lowest position that a query at ``position`` sees."""
        return max(position - self.window + 1, 0) if self.window else 0
