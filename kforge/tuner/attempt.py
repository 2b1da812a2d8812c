"""``kforge try`` as functions: one kernel built, checked, timed and compared; and handed in."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kforge.backends.building import build
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.core.target import Peak, Target
from kforge.core.trial import Artifact, Candidate, CompilerReport, Decision, Failure, NumericsClass, Trial, Verdict
from kforge.core.workload import Workload
from kforge.harness import Harness
from kforge.harness.judge import interval, zygote_locations
from kforge.harness.pairs import ContestantFailure
from kforge.operators import get
from kforge.operators.base import Cost
from kforge.registry.database import Registry
from kforge.targets.probe import BandwidthProbe
from kforge.targets.roofline import Limit, time_limit
from kforge.tuner.contenders import Incumbent
from kforge.tuner.finals import bucket_shapes
from kforge.tuner.winners import Seconds, record_of

_PAIRS, _ZYGOTES = 8, 5
_ONE_SIDED = 0.025  # of each bound: together 95 %
_PROBE_SECONDS = 0.1


@dataclass(frozen=True)
class Ratio:
    """Incumbent's seconds over the candidate's: above 1, the candidate is faster. Bounds hold 95 % of the time."""

    value: float
    lower: float
    upper: float
    pairs: int
    incumbent_seconds: float

    @property
    def told(self) -> str:
        if self.lower > 1:
            return "faster"
        return "slower" if self.upper < 1 else "not told apart"


@dataclass(frozen=True)
class Attempt:
    """How far a kernel came. ``failure`` is its own; ``unmeasured`` says why there is no ratio although it is right."""

    candidate: Candidate
    workload: Workload
    report: CompilerReport | None
    trial: Trial | None
    failure: Failure | None
    cost: Cost
    limit: Limit | None = None  # with the bandwidth measured beside the timing
    bandwidth: Peak | None = None
    ratio: Ratio | None = None
    unmeasured: str = ""

    @property
    def share(self) -> float | None:
        """Of the roofline: the least time that the limits allow over the time taken."""
        timed = self.trial.timing if self.trial else None
        return self.limit.seconds / timed.seconds if timed and timed.seconds and self.limit else None


@dataclass(frozen=True)
class Submission:
    """The judge's verdict over the bucket; ``kernel`` is its number in the registry when it was accepted."""

    verdict: Verdict
    bucket: tuple[tuple[str, int], ...]
    incumbent: str
    kernel: int | None


def attempt(candidate: Candidate, workload: Workload, incumbent: Incumbent, harness: Harness) -> Attempt:
    """Build, admit, check, time beside the measured bandwidth, and compare in interleaved pairs."""
    done = timed(candidate, workload, harness)
    return done if done.failure is not None else compared(done, incumbent, harness)


def timed(candidate: Candidate, workload: Workload, harness: Harness) -> Attempt:
    """All of an attempt but the comparison."""
    target, threads = harness.target, harness.threads
    cost = get(workload.problem.operator).cost(workload)
    built = build(candidate, target)
    if isinstance(built, Failure):
        return Attempt(candidate, workload, None, None, _in_own_words(built, candidate), cost)
    with BandwidthProbe(threads) as probe:
        before = probe.measure(_PROBE_SECONDS)
        trial = harness.evaluate(candidate, workload)
        after = probe.measure(_PROBE_SECONDS)
    bandwidth = max(before, after, key=lambda peak: peak.value)  # of two moments, the better one
    try:
        limit = time_limit(cost, target, threads, bandwidth.value)
    except KforgeError:  # a target without this peak: there is no roofline to hold it against
        limit = None
    return Attempt(candidate, workload, built.report, trial, trial.failure, cost, limit, bandwidth)


def compared(done: Attempt, incumbent: Incumbent, harness: Harness) -> Attempt:
    """With the ratio to an incumbent, of a kernel that was found right."""
    candidate, workload = done.candidate, done.workload
    if incumbent.candidate.hash == candidate.hash:
        return dataclasses.replace(done, unmeasured="it is the incumbent itself")
    sample = harness.compare(candidate, incumbent.candidate, workload, pairs=_PAIRS, zygotes=_ZYGOTES)
    if isinstance(sample, ContestantFailure):
        if sample.hash == candidate.hash:
            return dataclasses.replace(done, failure=sample.failure)
        return dataclasses.replace(done, unmeasured=f"the incumbent failed: {sample.failure.reason}")
    found = interval(zygote_locations(sample), _ONE_SIDED)
    ratio = Ratio(
        math.exp(found.location),
        math.exp(found.lower),
        math.exp(found.upper),
        len(sample.log_ratios),
        sample.incumbent_seconds,
    )
    return dataclasses.replace(done, ratio=ratio)


def _in_own_words(failure: Failure, candidate: Candidate) -> Failure:
    """A compiler's message with the file's own name; what a template rendered to has none."""
    name = candidate.template.removeprefix("file:")
    if name.endswith(".j2"):
        return failure
    reason, detail = (text.replace("kernel.cc", name) for text in (failure.reason, failure.detail))
    return Failure(failure.kind, reason, detail)


def bucket_workload(workload: Workload) -> Workload:
    """The tuning point of the bucket that ``workload`` falls into: what a kernel is judged and kept at."""
    point = get(workload.problem.operator).bucket(workload.problem, workload.axes)
    return Workload.of(workload.problem, workload.count, workload.phase, **{**workload.axes, **point})


def submit(
    candidate: Candidate, workload: Workload, serving: Incumbent, harness: Harness, registry: Registry
) -> Submission:
    """Judge a candidate at its bucket against what serves there now; an accepted one goes into the registry.

    It is not served before an engine run has promoted it. Raises KforgeError for a relaxed kernel, and while a tune
    measures.
    """
    if candidate.numerics is not NumericsClass.EXACT:
        raise KforgeError("--submit takes exact kernels only: the engine's tokens must not depend on the kernel")
    return judged(candidate, workload, serving, harness, registry)


def judged(
    candidate: Candidate,
    workload: Workload,
    serving: Incumbent,
    harness: Harness,
    registry: Registry,
    promoted_for: str = "",
) -> Submission:
    """A candidate of any class before the judge, and in the registry when it is accepted: promoted at once where
    ``promoted_for`` gives the reason. Raises KforgeError while a tune measures."""
    target = harness.target
    at = bucket_workload(workload)
    run = f"hand-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{candidate.hash[:8]}"
    with registry.tuning_lock():
        verdict = harness.judge(candidate, serving.candidate, bucket_shapes(at))
        number = None
        if verdict.decision is Decision.ACCEPTED:
            number = _store(candidate, at, serving, verdict, harness, registry, target, run)
            if promoted_for:
                registry.set_state(number, KernelState.PROMOTED, promoted_for)
    bucket = tuple(sorted(get(at.problem.operator).bucket(at.problem, at.axes).items()))
    return Submission(verdict, bucket, serving.label, number)


def _store(
    candidate: Candidate,
    at: Workload,
    serving: Incumbent,
    verdict: Verdict,
    harness: Harness,
    registry: Registry,
    target: Target,
    run: str,
) -> int:
    artifact = build(candidate, target)
    assert isinstance(artifact, Artifact)  # it was judged a moment ago
    mine = harness.evaluate(candidate, at)
    theirs = harness.evaluate(serving.candidate, at)
    if mine.failure is not None:
        raise KforgeError(f"the kernel failed after it was accepted, so it is not kept: {mine.failure.reason}")
    own = mine.timing.seconds if mine.timing else 0.0
    default = serving.kernel.default_seconds if serving.kernel else theirs.timing.seconds if theirs.timing else 0.0
    kernel = record_of(candidate, artifact, verdict, serving.kernel, at, target, run, Seconds(own, default))
    registry.begin_run(run, at.problem.key, target.identity, Path(""))
    registry.record_trial(run, target.identity, at.problem, mine)
    evidence: dict[str, object] = {
        "verdict": dataclasses.asdict(verdict),
        "sandbox": dataclasses.asdict(harness.provenance),
    }
    return registry.accept(kernel, artifact.data, candidate.source, evidence)
