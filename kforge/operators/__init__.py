"""Operator contracts and their references."""

from __future__ import annotations

import functools
from importlib import import_module

from kforge.operators.base import Bound, Cost, Distribution, Operator, Part, Residency, Role, TensorSpec

__all__ = ["Bound", "Cost", "Distribution", "Operator", "Part", "Residency", "Role", "TensorSpec", "get", "names"]

_WHERE = {
    "embedding": ("embedding", "Embedding"),
    "rms_norm": ("rms_norm", "RmsNorm"),
    "linear": ("linear", "Linear"),
    "rope_kv_write": ("rope", "RopeKvWrite"),
    "paged_attention": ("attention", "PagedAttention"),
    "silu_mul": ("small", "SiluMul"),
    "gather_rows": ("small", "GatherRows"),
    "argmax": ("small", "Argmax"),
}


def names() -> tuple[str, ...]:
    """Names of all operators."""
    return tuple(_WHERE)


@functools.cache
def get(name: str) -> Operator:
    """The operator called ``name``. Raises KeyError that lists the known ones."""
    if name not in _WHERE:
        raise KeyError(f"no operator {name!r}; known are {', '.join(_WHERE)}")
    module, cls = _WHERE[name]
    return getattr(import_module(f"kforge.operators.{module}"), cls)()
