"""A lesson: what a move against a bottleneck came to, on the evidence of outcomes that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Finding(StrEnum):
    """What one outcome says of a move. Closed."""

    GAIN = "gain"  # faster than what was best before
    NO_GAIN = "no_gain"  # not faster
    FAILED = "failed"  # nothing of it was right
    OPEN = "open"  # not told apart


class Standing(StrEnum):
    """What becomes of a lesson. Prompts show those that are held; all but those removed are listed."""

    HELD = "held"  # more outcomes speak for it than against it
    DEMOTED = "demoted"  # as many speak against it
    OPEN = "open"  # no outcome has decided anything yet
    REMOVED = "removed"  # by hand; its history stays


@dataclass(frozen=True)
class Subject:
    """What a lesson is about. ``family``: the kind of target, such as ``x86_64 avx512_vnni``; ``move``: in the words of
    whoever proposed it first."""

    operator: str
    backend: str
    family: str
    bottleneck: str
    move: str


@dataclass(frozen=True)
class Judged:
    """A verdict in short. ``gain`` over the incumbent and its lower bound are ratios minus one."""

    bucket: str
    decision: str
    reason: str
    gain: float
    lower: float
    pairs: int


@dataclass(frozen=True)
class Evidence:
    """The outcome of one idea, its repairs included.

    ``gain``: of the search, over the best before in the task's weighted time, as a ratio minus one; None where nothing
    ran or nothing was there to compare with. ``buckets``: the same by bucket, as ratios of times. ``trials``: their
    numbers in the registry, the fastest first.
    """

    run: str
    idea: str
    problem: str
    target: str
    finding: Finding
    predicted: float
    gain: float | None = None
    buckets: tuple[tuple[str, float], ...] = ()
    judged: tuple[Judged, ...] = ()
    failure: str = ""  # its class
    trials: tuple[int, ...] = ()
    created: str = ""  # ISO 8601, UTC


@dataclass(frozen=True)
class Lesson:
    """``evidence``: one for each idea, as of the last time that it was heard of; the newest last."""

    id: int
    subject: Subject
    evidence: tuple[Evidence, ...]
    removed: bool = False

    @property
    def claim(self) -> Finding:
        """What most of the outcomes that ran came to; of two that are equally many, what was found first."""
        found = [e.finding for e in self.evidence]
        ran = [finding for finding in found if finding in (Finding.GAIN, Finding.NO_GAIN)]
        if ran:
            return max(ran, key=ran.count)
        return Finding.FAILED if Finding.FAILED in found else Finding.OPEN

    @property
    def supports(self) -> int:
        return sum(e.finding is self.claim for e in self.evidence) if self.claim is not Finding.OPEN else 0

    @property
    def contradictions(self) -> int:
        """Outcomes that ran and came to the opposite. What failed says nothing of what it would have brought."""
        opposite = {Finding.GAIN: Finding.NO_GAIN, Finding.NO_GAIN: Finding.GAIN}.get(self.claim)
        return sum(e.finding is opposite for e in self.evidence)

    @property
    def standing(self) -> Standing:
        if self.removed:
            return Standing.REMOVED
        if self.claim is Finding.OPEN:
            return Standing.OPEN
        return Standing.HELD if self.supports > self.contradictions else Standing.DEMOTED

    @property
    def judged(self) -> int:
        """Outcomes for it that a judge decided: in interleaved pairs, where a search only ranks."""
        return sum(bool(e.judged) for e in self.evidence if e.finding is self.claim)

    @property
    def updated(self) -> str:
        return max((e.created for e in self.evidence), default="")
