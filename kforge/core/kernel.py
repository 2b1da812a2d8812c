"""A kernel: an accepted candidate in the registry, with its provenance; and the answer of a look-up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kforge.core.layout import Layout
from kforge.core.trial import NumericsClass
from kforge.core.workload import Attr, Problem


class KernelState(StrEnum):
    """The last event of a kernel's history decides. Only ``promoted`` kernels are served."""

    CHECKED = "checked"  # built and found right without its device, never timed: first in line when one appears
    ACCEPTED = "accepted"  # the judge's verdict; not yet proven in the engine
    PROMOTED = "promoted"  # the engine is not slower with it and gives the same tokens
    RETIRED = "retired"  # replaced by a better one
    QUARANTINED = "quarantined"  # found wrong, slower or damaged: never served


@dataclass(frozen=True)
class KernelRecord:
    """One kernel at one bucket of one target.

    ``gain`` is the judge's, from interleaved pairs. The seconds per call are the search's, each timed at its own
    moment: they rank, and their ratio is not the gain. Of a kernel that was only checked all of these are 0.
    """

    candidate_hash: str
    problem: Problem
    bucket: tuple[tuple[str, int], ...]
    target_identity: str
    target_name: str
    operator_version: int
    abi_version: int
    numerics: NumericsClass
    layouts: tuple[tuple[str, Layout], ...]
    backend: str
    template: str
    template_hash: str
    params: tuple[tuple[str, Attr], ...]
    source_hash: str
    artifact_hash: str
    compiler: str
    seconds: float
    default_seconds: float
    gain: float  # over the default kernel, as a ratio minus one
    gain_lower: float  # its lower confidence bound
    run: str
    proposer: str = "builtin"
    state: KernelState = KernelState.ACCEPTED
    created: str = ""  # ISO 8601, UTC
    id: int = 0

    @property
    def bucket_key(self) -> str:
        return ",".join(f"{k}={v}" for k, v in self.bucket)


@dataclass(frozen=True)
class Settled:
    """What a run decided for a problem: its weight's layout jointly over all buckets, and with which templates."""

    problem: str  # key of the problem without its layout
    rows: int  # panel height; 0 for operators without a packed weight
    buckets: tuple[str, ...]
    templates: str  # hash over the templates that competed


class Tier(StrEnum):
    """How near the answer is to the question; the first two are promises, the rest estimates."""

    EXACT = "exact"  # measured at this bucket
    ABOVE = "above"  # the smallest measured bucket that covers these axes
    NEAREST = "nearest"  # the nearest measured bucket within a bounded ratio
    SIBLING = "sibling"  # measured on a target with the same ISA, another core count
    DEFAULT = "default"  # no kernel: the shipped default serves


@dataclass(frozen=True)
class Step:
    """Why one entry was taken or refused."""

    tier: Tier
    entry: str  # kernel hash and bucket, or what was looked for
    taken: bool
    reason: str


@dataclass(frozen=True)
class Answer:
    """Result of a look-up. ``kernel`` is None exactly when ``tier`` is default."""

    kernel: KernelRecord | None
    tier: Tier
    trace: tuple[Step, ...]
    stale: tuple[str, ...] = ()  # soft validators that differ: served, flagged, queued for tuning again

    @property
    def promised(self) -> bool:
        """Measured on this target at this bucket: everything else is an estimate."""
        return self.tier is Tier.EXACT and not self.stale
