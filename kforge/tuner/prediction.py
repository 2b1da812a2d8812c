"""How long a template should take before anything was measured: what the search tries first."""

from __future__ import annotations

from kforge.backends.templates import Template
from kforge.core.target import Target
from kforge.operators.base import Cost
from kforge.targets.roofline import time_limit

# Bytes of the vectors that a feature brings, the widest first. A template that requires none counts as a compiler's
# baseline (SSE2 and ASIMD: 16 bytes).
_VECTOR_BYTES = {"avx512f": 64, "avx2": 32}
_BASELINE_BYTES = 16


def predicted_seconds(template: Template, cost: Cost, target: Target, threads: int) -> float:
    """The roofline's seconds, its arithmetic slowed by how much narrower the template's vectors are than the target's.

    A rank among templates, not a promise: memory-bound calls come out alike. Raises KforgeError without figures.
    """
    limit = time_limit(cost, target, threads)
    slower = vector_bytes(target.features) / vector_bytes(template.requires)
    return max(limit.memory_seconds, limit.compute_seconds * slower)


def vector_bytes(features: tuple[str, ...]) -> int:
    """Width in bytes of the widest vectors that these features bring."""
    return max((width for name, width in _VECTOR_BYTES.items() if name in features), default=_BASELINE_BYTES)
