"""What building and measuring tools answer. Times are in seconds per call."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Answer(BaseModel):
    """An answer; its fields are the tool's output schema."""


class Subject(Answer):
    """Which candidate it was: ``candidate`` is its hash, of everything that its machine code depends on."""

    candidate: str
    template: str
    params: dict[str, int | str]
    numerics: str
    workload: str


class Rendered(Answer):
    subject: Subject
    source: str


class Build(Answer):
    """The compiler's own report. ``spills``: stores and loads of vector registers on the stack; ``mix``: instructions
    by class."""

    compiler: str
    flags: str
    seconds: float
    text_bytes: int
    spills: int
    mix: dict[str, int]
    warnings: str


class LoopFacts(Answer):
    """``first`` and ``last``: numbers of lines in the whole listing, from 0."""

    first: int
    last: int
    depth: int
    innermost: bool
    mix: dict[str, int]


class Built(Answer):
    """``hot``: the innermost loop that computes most on vectors, None for code without loops."""

    subject: Subject
    build: Build
    instructions: int
    loops: int
    hot: LoopFacts | None


class Disassembly(Answer):
    """Lines ``first`` to ``first + shown - 1`` of ``instructions``."""

    subject: Subject
    instructions: int
    first: int
    shown: int
    loops: list[LoopFacts] = Field(description="The innermost ones, the busiest first, at most 16.")
    text: str


class Checked(Answer):
    """It is right at every checked shape. ``max_error_ratio``: worst error over its bound; 0 where bits were
    compared."""

    subject: Subject
    cases: int
    max_error_ratio: float


class Roofline(Answer):
    """What the target's limits allow, with the bandwidth that was measured beside the timing. ``share``: of the limit
    that was reached; above 1, the machine changed meanwhile."""

    seconds: float
    bound_by: str
    bandwidth: float
    share: float


class Measured(Answer):
    """It is right, and this fast. ``spread``: interquartile range over median. A ranking, not a decision; ``doubts``:
    what speaks against believing even that."""

    subject: Subject
    seconds: float
    spread: float
    batches: int
    calls_per_batch: int
    max_error_ratio: float
    spills: int
    roofline: Roofline | None
    doubts: list[str]


class Compared(Answer):
    """Interleaved pairs in fresh processes. ``ratio``: incumbent's seconds over the kernel's, above 1 when the kernel
    is faster; ``lower`` and ``upper`` hold in 95 % of such comparisons. ``told``: faster, slower, or not told apart.
    ``unmeasured``: why there is no ratio."""

    measured: Measured
    against: str
    incumbent: str
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    pairs: int = 0
    incumbent_seconds: float | None = None
    told: str = ""
    unmeasured: str = ""


class TunedPoint(Answer):
    params: dict[str, int | str]
    seconds: float
    spread: float
    candidate: str


class FailedPoints(Answer):
    kind: str
    count: int
    params: dict[str, int | str] = Field(description="Of one of them.")
    reason: str


class Tuned(Answer):
    """``best``: the fastest points, fastest first. ``points``: of the space; ``stopped``: why the search ended;
    ``untold``: trials whose calls were too short to be told, now, beside the cost of a command."""

    template: str
    workload: str
    points: int
    trials: int
    stopped: str
    untold: int
    default_seconds: float | None
    limit_seconds: float
    best: list[TunedPoint]
    failures: list[FailedPoints]


class EngineMode(Answer):
    """The engine in one mode without the kernel over the engine with it, minus one, with its 95 % interval. ``floor``:
    how far two equal engines seem apart. ``calls``: of the kernel, while it was measured."""

    mode: str
    gain: float
    lower: float
    upper: float
    same_tokens: bool
    calls: int
    pairs: int
    floor: float
    promotes: bool


class Promoted(Answer):
    """``state``: promoted, or accepted as before. ``run``: its tuning run, for read_report."""

    kernel: int
    state: str
    reason: str
    run: str
    engine: list[EngineMode]


class Submitted(Answer):
    """The judge's verdict at the bucket. ``kernel``: its number in the registry when it was accepted: it serves after
    an engine run has promoted it; one of an imported operator, which no engine calls, serves at once."""

    decision: str
    text: str
    bucket: dict[str, int]
    incumbent: str
    gain: float
    lower: float
    upper: float
    pairs: int
    kernel: int | None
