"""Tasks in the middle of a run, made of shipped templates and figures that a test can know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kforge.agent.answers import Writing
from kforge.agent.drafting import draft, root_of, source_of
from kforge.agent.ideas import FIRST_TRIALS, GIVEN_UP
from kforge.backends import templates
from kforge.backends.templates import Template
from kforge.core.trial import CompilerReport, Failure, Timing, Trial
from kforge.core.workload import Attr, Phase, Problem, Workload, attrs
from kforge.targets.files import load_target
from kforge.tuner.plan import Bucket, Task
from kforge.tuner.points import Point
from kforge.tuner.proposals import Importances, Inspected, LoopSeen, Outcome, Proposal, Situation, Tried

TARGET = load_target("zen4")
NORM = Problem.of("rms_norm", H=576, residual=1)
LINEAR = Problem.of("linear", K=2048, N=2048, weight="q4_0", act="a8", epilogue="none", bias=0)
ATTENTION = Problem.of("paged_attention", Hq=32, Hkv=8, D=64, P=64, kv="f16")
AXES = {
    "rms_norm": [{"T": 1}, {"T": 32}],
    "linear": [{"M": 1}, {"M": 8}, {"M": 64}],
    "paged_attention": [{"T": 8, "S": 8, "B": 8, "pages": 64, "max_context": 512}],
}
LOOP = ("vmovups zmm0,[rdi+rax]", "vfmadd231ps zmm1,zmm0,zmm0", "add rax,40h", "jne short 0000000000001040h")
REPORT = CompilerReport("g++ 12.2.0", ("-O3",), 0.7, 4321, 5, (("fma", 100), ("vector move", 250), ("shuffle", 30)))
INSPECTED = Inspected(REPORT, (LoopSeen(LOOP, (("vector move", 1), ("fma", 1), ("scalar", 1), ("branch", 1))),))


def task_of(problem: Problem) -> Task:
    """With the buckets of ``AXES``, each called 24 times by a decode step."""
    rows = problem.with_rows(32) if problem.operator == "linear" else problem
    return Task(problem, tuple(Bucket(Workload.of(rows, 24.0, Phase.DECODE, **axes), (("decode batch 1", 24.0),))
                               for axes in AXES[problem.operator]))


def shipped_template(operator: str, name: str = "") -> Template:
    return next(t for t in templates.load(operator) if name in t.path)


def tried(template: Template, seconds: Mapping[str, float], params: Mapping[str, Attr] | None = None, rows: int = 0,
          failure: Failure | None = None, spread: float = 0.01) -> Tried:
    """A point with its time in each bucket (by key); with ``failure`` it failed in the first of them."""
    point = Point(template.path, rows, attrs(params or {p.name: p.default for p in template.params}))
    trials = {key: Trial("c", key, point.params, template.path,
                         timing=None if failure else Timing(value, spread, 5, 10),
                         failure=failure) for key, value in seconds.items()}
    return Tried(point, template.hash, trials)


@dataclass
class Story:
    """A task as a run goes on. Times are in microseconds, in the order of the task's buckets."""

    task: Task
    templates: list[Template] = field(default_factory=list)
    points: list[Tried] = field(default_factory=list)
    failures: list[Tried] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    limits: Sequence[float] = ()
    importances: Mapping[str, float] = field(default_factory=dict)
    empty_call: Timing | None = None
    inspected: list[Tried] = field(default_factory=list)  # points whose machine code was looked into

    @property
    def keys(self) -> list[str]:
        return [bucket.workload.key for bucket in self.task.buckets]

    def seconds(self, us: Sequence[float]) -> dict[str, float]:
        return {key: 1e-6 * value for key, value in zip(self.keys, us, strict=False)}

    def measured(self, template: Template, *us: float, **params: Attr) -> Tried:
        point = tried(template, self.seconds(us), params or None, 32 if self.task.packed else 0)
        if template not in self.templates:
            self.templates.append(template)
        self.points.append(point)
        return point

    def outcome(self, proposal: Proposal, *us: float, failure: Failure | None = None) -> Outcome:
        """Told of a proposal: its first share of points, with these times, or as many failures as are enough."""
        points = [tried(proposal.template, self.seconds(us or (1,)), failure=failure)]
        points *= GIVEN_UP if failure else FIRST_TRIALS
        if failure is None:
            self.templates.append(proposal.template)
            self.points += points
        else:
            self.failures += points
        told = Outcome(proposal, points, failure, ())
        self.outcomes.append(told)
        return told

    @property
    def situation(self) -> Situation:
        order = sorted(self.points, key=lambda p: sum(t.timing.seconds for t in p.trials.values() if t.timing))
        first = {point.template_hash: n for n, point in reversed(list(enumerate(order)))}
        ranked = sorted(self.templates, key=lambda t: first.get(t.hash, len(order)))
        weights = {key: 1e3 for key in self.keys}
        return Situation(self.task, TARGET, 2, ranked, order, list(self.failures), list(self.outcomes),
                         self.seconds(self.limits or [1.0] * len(self.keys)), weights, 0.12,
                         Importances(40, self.importances), self.empty_call, self.inspect)

    def inspect(self, point: Tried) -> Inspected:
        self.inspected.append(point)
        return INSPECTED


def norm_story() -> Story:
    """The shipped template measured at two points."""
    story = Story(task_of(NORM), limits=(0.5, 10))
    template = shipped_template("rms_norm")
    story.measured(template, 2.0, 40.0, tokens=4, compiler="gcc")
    story.measured(template, 2.2, 38.0, tokens=8, compiler="clang")
    return story


def linear_story() -> Story:
    story = Story(task_of(LINEAR), limits=(60, 62, 150), importances={"m_tile": 0.61, "prefetch": 0.2, "rows": 0.003})
    vnni, avx2 = shipped_template("linear", "a8_vnni"), shipped_template("linear", "a8_avx2")
    story.measured(vnni, 80, 110, 400)
    story.measured(avx2, 90, 220, 1400)
    return story


def variation(name: str, number: int, run: Path, tokens: Sequence[int] = (1, 2, 3)) -> Template:
    """A template of somebody's own: the shipped rms_norm with other choices."""
    base = source_of(shipped_template("rms_norm"))
    text = base.text.replace("choices = [1, 2, 4, 8]", f"choices = {[*tokens, 4]}")
    answer = Writing(name=name, hypothesis="h", template=text)
    made = draft(answer, number, None, task_of(NORM), TARGET, root_of(run), [])
    assert isinstance(made, Template), made
    return made
