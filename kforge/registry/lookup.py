"""The look-up: a pure function over a snapshot that says why it took or refused each entry.

exact bucket -> the smallest measured bucket above -> nearest within a bounded ratio -> sibling target -> default.
It never crosses architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kforge.core.kernel import Answer, KernelRecord, Step, Tier
from kforge.core.workload import Problem
from kforge.registry.snapshot import Snapshot
from kforge.registry.validators import Severity, Toolchain, conflicts

NEAREST_RATIO = 4.0  # an axis may differ by this factor, no more

Bucket = Callable[[Problem, Mapping[str, int]], dict[str, int]]


@dataclass(frozen=True)
class Asker:
    """Who asks: target identity, the identities of targets with the same ISA (siblings), and the present toolchain."""

    target_identity: str
    toolchain: Toolchain
    siblings: tuple[str, ...] = ()


def lookup(snapshot: Snapshot, problem: Problem, dynamic: Mapping[str, int], asker: Asker, bucket: Bucket) -> Answer:
    """The kernel to use for ``problem`` at ``dynamic`` axes. Pure: the same arguments give the same answer.

    ``bucket`` is the operator's own bucket function, so that tuner, engine and look-up share one.
    """
    point = tuple(sorted(bucket(problem, dynamic).items()))
    trace: list[Step] = []
    entries = snapshot.served(problem)
    for kernel in reversed(entries):  # the common case first: an exact hit needs no look at the others
        if kernel.bucket == point and kernel.target_identity == asker.target_identity and not _hard(kernel, asker):
            return _take(kernel, Tier.EXACT, "measured at this bucket on this target", trace, asker)
    if not entries:
        trace.append(Step(Tier.EXACT, problem.key, False, "no promoted kernel of this problem on any target"))
    for kernel in snapshot.unserved(problem, asker.target_identity):
        reason = f"accepted by the judge, not promoted, so it does not serve; why: kforge kernels show {kernel.id}"
        trace.append(Step(Tier.EXACT, _name(kernel), False, reason))
    if untimed := len(snapshot.waiting(problem, (asker.target_identity,))):
        reason = "built and checked, never timed: none serves before a tune on this target has timed it"
        trace.append(Step(Tier.EXACT, f"{untimed} kernels of {problem.key}", False, reason))
    own = _usable([k for k in entries if k.target_identity == asker.target_identity], asker, trace)
    siblings = [k for k in entries if k.target_identity in asker.siblings]
    for kernel in entries:
        if kernel.target_identity != asker.target_identity and kernel not in siblings:
            reason = f"measured on {kernel.target_name}, another architecture or ISA"
            trace.append(Step(Tier.SIBLING, _name(kernel), False, reason))

    above = [k for k in own if _covers(k.bucket, point)]
    if above:
        best = min(above, key=lambda k: (_distance(k.bucket, point), k.id))
        return _take(best, Tier.ABOVE, "the smallest measured bucket that covers these axes", trace, asker)
    estimates = [(k, Tier.NEAREST) for k in own] + [(k, Tier.SIBLING) for k in _usable(siblings, asker, trace)]
    for kernel, tier in estimates:
        ratio = _distance(kernel.bucket, point)
        if ratio > NEAREST_RATIO:
            trace.append(
                Step(tier, _name(kernel), False, f"an axis differs by {ratio:.3g}x, more than {NEAREST_RATIO:g}x")
            )
    near = [k for k in own if _distance(k.bucket, point) <= NEAREST_RATIO]
    if near:
        best = min(near, key=lambda k: (_distance(k.bucket, point), k.id))
        return _take(best, Tier.NEAREST, f"nearest measured bucket, within {NEAREST_RATIO:g}x", trace, asker)
    kin = [k for k in siblings if _distance(k.bucket, point) <= NEAREST_RATIO and not _hard(k, asker)]
    if kin:
        best = min(kin, key=lambda k: (_distance(k.bucket, point), k.id))
        return _take(best, Tier.SIBLING, f"measured on {best.target_name}: an estimate here", trace, asker)
    trace.append(Step(Tier.DEFAULT, problem.key, True, "nothing measured is near enough: the default serves"))
    return Answer(None, Tier.DEFAULT, tuple(trace))


def _take(kernel: KernelRecord, tier: Tier, reason: str, trace: list[Step], asker: Asker) -> Answer:
    soft = tuple(c.text for c in conflicts(kernel, asker.toolchain) if c.severity is Severity.SOFT)
    return Answer(kernel, tier, (*trace, Step(tier, _name(kernel), True, reason)), soft)


def _hard(kernel: KernelRecord, asker: Asker) -> str:
    return "; ".join(c.text for c in conflicts(kernel, asker.toolchain) if c.severity is Severity.HARD)


def _usable(kernels: list[KernelRecord], asker: Asker, trace: list[Step]) -> list[KernelRecord]:
    """Newest first, those with a hard conflict refused."""
    usable = []
    for kernel in reversed(kernels):
        if reason := _hard(kernel, asker):
            trace.append(Step(Tier.EXACT, _name(kernel), False, reason))
        else:
            usable.append(kernel)
    return usable


def _name(kernel: KernelRecord) -> str:
    return f"{kernel.candidate_hash} at {kernel.bucket_key}"


def _covers(bucket: tuple[tuple[str, int], ...], point: tuple[tuple[str, int], ...]) -> bool:
    """Whether the bucket is at or above the point on every axis, and within the bounded ratio."""
    have = dict(bucket)
    return all(have.get(axis, 0) >= value for axis, value in point) and _distance(bucket, point) <= NEAREST_RATIO


def _distance(bucket: tuple[tuple[str, int], ...], point: tuple[tuple[str, int], ...]) -> float:
    """The largest factor by which an axis differs."""
    have = dict(bucket)
    return max((max(have.get(a, 0) / max(v, 1), v / max(have.get(a, 0), 1)) for a, v in point), default=1.0)
