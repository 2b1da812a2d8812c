"""What reading tools answer: targets, operators, workloads, templates, runs, kernels."""

from __future__ import annotations

from pydantic import Field

from kforge.mcp.measured import Answer


class TargetBrief(Answer):
    name: str
    model: str = ""
    arch: str = ""
    cores: int = 0
    figures: str = Field(default="", description="Whether its limits are measured, a vendor's, or missing.")
    error: str = ""


class Targets(Answer):
    targets: list[TargetBrief]


class PeakFacts(Answer):
    name: str
    value: float
    spread: float
    source: str


class CacheFacts(Answer):
    level: int
    bytes: int
    shared_by: int
    line: int


class TargetFacts(Answer):
    """``bandwidth`` in bytes/s by threads, ``peaks`` in operations/s of all cores."""

    name: str
    kind: str
    vendor: str
    model: str
    arch: str
    features: list[str]
    cores: int
    memory_bytes: int
    caches: list[CacheFacts]
    bandwidth: list[PeakFacts]
    peaks: list[PeakFacts]
    compilers: list[str]
    identity: str


class OperatorBrief(Answer):
    name: str
    summary: str
    static_axes: list[str]
    dynamic_axes: list[str]


class Operators(Answer):
    operators: list[OperatorBrief]


class TensorFacts(Answer):
    """In launch order. ``shape`` names dynamic axes; strides are in elements and may exceed the shape."""

    name: str
    dtype: str
    shape: str
    role: str
    residency: str
    layout: str


class OperatorFacts(Answer):
    """``axes``: those that the shapes were drawn at, an example where none were asked for. ``order``: source text of
    the order specification, which an exact kernel equals to the bit. ``text``: the contract with its error bound.
    ``panel``: how packed weights lie in memory, empty where there are none. ``usual``: axes with a usual value."""

    name: str
    version: int
    text: str
    static_axes: list[str]
    dynamic_axes: list[str] = Field(description="The order in kf_launch.axes.")
    scalars: list[str] = Field(description="The order in kf_launch.scalars.")
    usual: dict[str, int | str]
    axes: dict[str, int | str]
    tensors: list[TensorFacts]
    order: str
    panel: str
    bucket: dict[str, int] = Field(description="The tuning point that these axes fall into.")
    streamed_bytes: int
    hot_bytes: int
    operations: dict[str, int]


class ModelBrief(Answer):
    name: str
    what: str


class Models(Answer):
    models: list[ModelBrief]


class WorkloadRow(Answer):
    """``axes``: as other tools take them. ``share``: of its mode's step, were every call at its limit."""

    mode: str
    call: str
    operator: str
    axes: dict[str, int | str]
    count: int
    limit_seconds: float
    bound_by: str
    share: float


class Workloads(Answer):
    model: str
    rows: list[WorkloadRow]


class ParamFacts(Answer):
    name: str
    choices: list[int | str]
    default: int | str
    when: str


class TemplateBrief(Answer):
    path: str
    operator: str
    numerics: str
    summary: str
    requires: list[str]
    applies: str
    params: list[ParamFacts]


class Templates(Answer):
    """``parts``: files that templates may include, with the text of which get_template answers too."""

    templates: list[TemplateBrief]
    parts: list[str]


class Text(Answer):
    name: str
    text: str


class SourceFile(Answer):
    name: str
    bytes: int
    modified: str


class Written(Answer):
    run: str
    folder: str
    name: str
    bytes: int


class Run(Answer):
    """``calls``: the last lines of what was built and measured in it."""

    name: str
    folder: str
    sources: list[SourceFile]
    calls: list[str]


class TraceStep(Answer):
    tier: str
    entry: str
    taken: bool
    reason: str


class KernelFacts(Answer):
    """``gain``: over the default kernel, as judged, a ratio minus one; ``gain_lower``: its lower bound. Seconds are the
    search's, which only rank."""

    number: int
    state: str
    problem: str
    bucket: dict[str, int]
    target: str
    candidate: str
    template: str
    params: dict[str, int | str]
    numerics: str
    compiler: str
    search_seconds: float
    gain: float
    gain_lower: float
    proposer: str
    run: str
    created: str


class Found(Answer):
    """``promised``: measured at this bucket on this target; everything else is an estimate."""

    tier: str
    promised: bool
    stale: list[str]
    kernel: KernelFacts | None
    trace: list[TraceStep]


class Kernels(Answer):
    """``left_out``: how many more there are."""

    kernels: list[KernelFacts]
    left_out: int


class KernelEvent(Answer):
    state: str
    reason: str
    at: str


class KernelHistory(Answer):
    kernel: KernelFacts
    history: list[KernelEvent]
    source: str


class LessonFacts(Answer):
    """What a move against a bottleneck came to. ``standing``: held, demoted (as many outcomes speak against it) or open
    (nothing is decided). ``says``: gain, no_gain, failed or open. ``family``: the kind of target it was measured on.
    ``told``: the same with the outcomes that it rests on."""

    number: int
    standing: str
    says: str
    supports: int
    contradictions: int
    operator: str
    backend: str
    family: str
    bottleneck: str
    told: str


class Lessons(Answer):
    """``left_out``: how many more there are."""

    lessons: list[LessonFacts]
    left_out: int


class TuningRun(Answer):
    run: str
    model: str = ""
    finished: bool = False
    trials: int = 0
    accepted: int = 0
    error: str = ""


class TuningRuns(Answer):
    runs: list[TuningRun]


class ReportProblem(Answer):
    """One problem at one bucket. Times in microseconds as text; ``micro``: the judge's gain, ``engine``: the
    engine's."""

    problem: str
    bucket: str
    share: str
    trials: int
    first: str
    best: str
    limit: str
    micro: str
    engine: str
    outcome: str


class ReportFailure(Answer):
    kind: str
    count: int
    reasons: list[str]


class Report(Answer):
    run: str
    told: list[str]
    problems: list[ReportProblem]
    failures: list[ReportFailure]
    verdicts: list[str]
