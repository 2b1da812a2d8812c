"""Search timings choose a layout, the engine confirms it: a layout that makes the engine slower never serves."""

from __future__ import annotations

import dataclasses

import pytest

from kforge.backends.cpp.build import build
from kforge.backends.defaults import default_kernel
from kforge.core.kernel import KernelRecord, KernelState
from kforge.core.trial import Artifact, Candidate, Decision, Verdict
from kforge.core.workload import Phase, Workload
from kforge.engine.kernel_set import DefaultKernels
from kforge.models import load
from kforge.models.graph import CallKind, StepOptions
from kforge.models.synth import synth
from kforge.models.workloads import Mode, workloads
from kforge.registry.database import Registry
from kforge.registry.snapshot import read
from kforge.targets.files import load_target
from kforge.tuner.engine_pairs import EnginePairs
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.layouts import LayoutGain, Layouts, LayoutVerdict
from kforge.tuner.options import TuneOptions
from kforge.tuner.progress import Silent
from kforge.tuner.promotion import Promotion
from kforge.tuner.winners import Seconds, record_of

GAIN = LayoutGain("p", "decode", 0.04, 0.02, True, 0.005)
MODE = Mode(Phase.DECODE, 2, 1, 64)
ROWS = 16  # the layout that the run chose; the default is another
SLOW = "for (volatile int spin = 0; spin < 300000; ++spin) {}"  # a burst is several times as long with it


@pytest.mark.parametrize(
    ("modes", "keeps"),
    [
        ([{}], True),
        ([{}, {"gain": -0.005, "lower": -0.015}], True),  # one weight, one layout: the modes count together
        ([{}, {"gain": -0.06, "lower": -0.07}], False),
        ([{"gain": 0.01, "lower": -0.001}], False),  # what served before stays unless a gain is shown
        ([{}, {"same_tokens": False}], False),
        ([], False),
    ],
    ids=str,
)
def test_a_layout_stays_only_when_the_engine_gains_over_all_modes(modes, keeps):
    verdict = LayoutVerdict("p", 32, 16, tuple(dataclasses.replace(GAIN, **m) for m in modes))
    assert verdict.keeps is keeps
    assert ("kept" in verdict.text) is keeps


class Bench:
    """A tiny model, an empty registry, and a run that settled one linear in another layout than it found."""

    def __init__(self, tmp_path):
        synth("tiny-llama-test", "q4_0", tmp_path / "tiny.gguf")
        self.path = tmp_path / "registry.db"
        self.target = load_target("host")
        self.options = TuneOptions("tiny", batches=(2,), context=64, prefill=64, threads=1)
        self.model = load(tmp_path / "tiny.gguf")
        rows = workloads(self.model, (2,), (64,), 0, StepOptions(kv=self.options.kv, act=self.options.act))
        self.workload = next(r.workload for r in rows if r.kind is CallKind.DOWN)
        self.problem = self.workload.problem.without_layout
        self.registry = Registry.open(self.path)
        self.folder = RunFolder.create(tmp_path / "runs", "tiny")
        self.registry.begin_run(self.folder.id, "tiny", self.target.identity, self.folder.path)
        self.before = read(self.path)
        self.rows_before = self.rows
        self.folder.write(
            Event.SETTLED,
            {
                "task": self.problem.key,
                "rows": ROWS,
                "before": self.rows_before,
                "buckets": ["M=2"],
                "templates": "t",
                "accepted": 0,
            },
        )

    @property
    def rows(self) -> int:
        return read(self.path).rows(self.problem, self.target.identity)

    def accept(self, change) -> KernelRecord:
        """The default in the new layout with its source changed, as if the judge had accepted it."""
        workload = Workload(self.problem.with_rows(ROWS), self.workload.dynamic, 1.0, Phase.DECODE)
        candidate: Candidate = default_kernel(workload.problem, self.target)
        candidate = dataclasses.replace(candidate, source=change(candidate.source))
        artifact = build(candidate, self.target)
        assert isinstance(artifact, Artifact), artifact
        verdict = Verdict(Decision.ACCEPTED, candidate.hash, "d", 0.02, 0.01, 0.03, 50, 5, 0.0)
        record = record_of(
            candidate, artifact, verdict, None, workload, self.target, self.folder.id, Seconds(1e-6, 1e-6)
        )
        return dataclasses.replace(record, id=self.registry.accept(record, artifact.data, candidate.source, {}))

    def confirm(self, accepted=(), time_is_up=lambda: False) -> list[LayoutVerdict]:
        self.pairs = EnginePairs(self.model, self.options, DefaultKernels(self.target))
        layouts = Layouts(self.pairs, self.target.identity, self.registry, self.folder, Silent())
        return layouts.confirm(self.before, list(accepted), [MODE], time_is_up)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    with bench.registry, bench.folder:
        yield bench


def test_the_engine_runs_both_layouts_and_its_word_is_settled(bench):
    assert bench.rows_before != ROWS
    (verdict,) = bench.confirm()
    assert verdict.gains[0].same_tokens and verdict.gains[0].floor > 0
    assert bench.rows == (ROWS if verdict.keeps else bench.rows_before)
    # What the journal knows is not measured again.
    assert bench.confirm() == [verdict]
    assert len(bench.folder.of(Event.LAYOUT_GAIN)) == 1


def test_a_layout_that_makes_the_engine_slower_is_taken_back_with_its_kernels(bench):
    kernel = bench.accept(_slowed)
    (verdict,) = bench.confirm([kernel])
    assert not verdict.keeps and verdict.gains[0].gain < -0.1
    assert bench.rows == bench.rows_before
    promotion = Promotion(bench.pairs, bench.registry, bench.folder, Silent())
    assert promotion.promote(bench.before, read(bench.path), [kernel], [MODE], lambda: False) == []
    (stored,) = read(bench.path).kernels
    assert stored.state is KernelState.ACCEPTED
    assert f"rows={ROWS}" in bench.registry.events(kernel.id)[-1].reason


def test_a_layout_that_the_time_did_not_reach_stays_undecided(bench):
    assert bench.confirm(time_is_up=lambda: True) == []
    assert bench.rows == bench.rows_before
    assert read(bench.path).settled(bench.problem, bench.target.identity) is None  # the next run tries again


def _slowed(source: str) -> str:
    head, brace, rest = source.partition("void kforge_kernel(")
    signature, opening, body = rest.partition("{")
    assert brace and opening
    return f"{head}{brace}{signature}{{ {SLOW} {body}"
