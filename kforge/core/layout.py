"""A layout: how a weight or the KV cache lies in memory. Packing lives in ``kforge.operators.layouts``."""

from __future__ import annotations

from dataclasses import dataclass

from kforge.core.workload import Attr, attrs, stable_hash


@dataclass(frozen=True)
class Layout:
    """A versioned, hashed object of its own; kernels declare the layouts that they consume."""

    family: str  # "panel" for weights, "paged" for the KV cache, "dense" for everything row-major
    version: int
    params: tuple[tuple[str, Attr], ...] = ()

    @classmethod
    def of(cls, family: str, version: int = 1, **params: Attr) -> Layout:
        return cls(family, version, attrs(params))

    def __getitem__(self, name: str) -> Attr:
        return dict(self.params)[name]

    @property
    def key(self) -> str:
        return f"{self.family}.v{self.version}({','.join(f'{k}={v}' for k, v in self.params)})"

    @property
    def hash(self) -> str:
        return stable_hash(self.key)
