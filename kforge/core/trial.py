"""What a build leaves, what a measurement says, and the closed lists of ways in which either can fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kforge.core.launch import Launch
from kforge.core.layout import Layout
from kforge.core.workload import Attr, Problem, stable_hash


class FailureClass(StrEnum):
    """Why a trial has no timing. Closed: reports and the tuner match on it."""

    TEMPLATE = "template"  # the template did not parse, render, or left its sandbox
    COMPILE = "compile"  # the compiler rejected the source
    COMPILE_LIMIT = "compile_limit"  # the compiler hit its time, memory or output limit
    ADMISSION = "admission"  # the artifact is not pure computation
    LOAD = "load"  # the trusted loader could not map or relocate the artifact
    CRASH = "crash"  # a fault: SIGSEGV, SIGILL, SIGFPE, ...
    TIMEOUT = "timeout"  # it did not come back in time
    FORBIDDEN = "forbidden"  # a system call that the jail does not allow
    MEMORY = "memory"  # scratch or memory beyond its limit
    FENCE = "fence"  # wrote outside its outputs or scratch
    INPUT_MODIFIED = "input_modified"  # wrote to an input
    INCORRECT = "incorrect"  # beyond the operator's bound
    INEXACT = "inexact"  # declared exact, but differs from the order specification
    NONDETERMINISTIC = "nondeterministic"  # two runs, or two thread counts, differ
    BACKGROUND = "background"  # it took processor time while it had nothing to do
    HARNESS = "harness"  # the harness itself failed: never the candidate's fault


@dataclass(frozen=True)
class Failure:
    """A failure as a value: its class, one sentence for the person who has to act, detail for a log or a repairer."""

    kind: FailureClass
    reason: str
    detail: str = ""


class NumericsClass(StrEnum):
    EXACT = "exact"  # bit for bit the operator's order specification
    RELAXED = "relaxed"  # within the operator's error bound


@dataclass(frozen=True)
class Candidate:
    """A template with values for its parameters, rendered."""

    problem: Problem
    backend: str
    template: str  # path below templates/kernels, or "file:NAME" for a hand-written kernel
    template_hash: str
    params: tuple[tuple[str, Attr], ...]
    source: str
    numerics: NumericsClass
    layouts: tuple[tuple[str, Layout], ...]  # tensor name -> the layout it is consumed in
    proposer: str = "builtin"
    parent: str = ""  # hash of the candidate that this one was derived from
    launches: tuple[Launch, ...] = ()  # of languages whose kernels are launched over a grid

    @property
    def hash(self) -> str:
        layouts = [(name, layout.key) for name, layout in self.layouts]
        launched = [repr(self.launches)] if self.launches else []
        return stable_hash([self.problem.key, self.backend, self.source, self.numerics.value, layouts, *launched])


@dataclass(frozen=True)
class CompilerReport:
    """The compiler's own words about an artifact."""

    compiler: str  # for instance "g++ 12.2.0"
    flags: tuple[str, ...]
    seconds: float
    text_bytes: int
    spills: int  # stack stores and loads of vector registers in the disassembly
    instruction_mix: tuple[tuple[str, int], ...] = ()  # mnemonic class -> count
    warnings: str = ""
    resources: tuple[tuple[str, int], ...] = ()  # of a device binary: "registers", "spill_bytes", "shared_bytes", ...


@dataclass(frozen=True)
class Artifact:
    """What a build leaves: the bytes, their hash and the compiler's report."""

    backend: str
    candidate_hash: str
    data: bytes = field(repr=False)
    abi_version: int
    report: CompilerReport
    launches: tuple[Launch, ...] = ()  # of a device binary, with what the build found

    @property
    def hash(self) -> str:
        import hashlib

        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Timing:
    """Seconds per call, from batches on the parent's clock."""

    seconds: float  # median over batches
    spread: float  # interquartile range over median
    batches: int
    calls_per_batch: int


@dataclass(frozen=True)
class Trial:
    """One candidate taken through the harness at one workload."""

    candidate_hash: str
    workload: str  # Workload.key
    params: tuple[tuple[str, Attr], ...]
    template: str
    timing: Timing | None = None
    failure: Failure | None = None
    artifact_hash: str = ""
    max_error_ratio: float = 0.0  # worst |out - ref| over the bound; <= 1 passes
    roofline_seconds: float = 0.0  # what the target's measured limits allow, in the same minute
    build_seconds: float = 0.0
    processes: int = 0

    @property
    def ok(self) -> bool:
        return self.failure is None and self.timing is not None


class RejectReason(StrEnum):
    FAILED = "failed"  # the trial failed
    SLOWER = "slower"
    NOT_SIGNIFICANT = "not_significant"  # the lower bound is not above zero
    GAIN_TOO_SMALL = "gain_too_small"  # below max(1 %, A/A floor)
    SHAPE_REGRESSION = "shape_regression"  # inferior at a shape of the bucket
    TOO_NOISY = "too_noisy"  # undecided inside the time budget
    ABOVE_ROOFLINE = "above_roofline"  # faster than physics: audited, not believed
    AUDIT = "audit"  # single calls on inputs that it never saw do not show the gain


class Decision(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Audit:
    """The gain over single calls, each handed over by itself, with inputs that are new and outputs and scratch that are
    poisoned: slower to measure and noisier than batches, but nothing that a kernel could remember helps it."""

    gain: float  # robust location of the log ratios incumbent / candidate, as a ratio minus one
    lower: float
    upper: float
    pairs: int
    seconds: float  # median of a candidate's call, hand-over taken off


@dataclass(frozen=True)
class Verdict:
    """What the judge says of a candidate beside the incumbent, at every shape of the bucket."""

    decision: Decision
    candidate_hash: str
    incumbent_hash: str
    gain: float  # robust location of the log ratios incumbent / candidate, as a ratio minus one
    lower: float  # lower confidence bound of the gain
    upper: float
    pairs: int
    zygotes: int
    floor: float  # the machine's A/A floor that the gain was held against
    reason: RejectReason | None = None
    per_shape: tuple[tuple[str, float], ...] = ()  # workload key -> gain
    text: str = ""
    audit: Audit | None = None  # of what would be accepted otherwise
