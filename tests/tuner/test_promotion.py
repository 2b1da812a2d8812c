"""Micro wins are not engine wins: what the engine says decides, and the engine is really run."""

from __future__ import annotations

import dataclasses

import pytest

from kforge.backends.defaults import default_kernel
from kforge.core.kernel import KernelState
from kforge.core.trial import Artifact, Decision, Verdict
from kforge.core.workload import Phase
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
from kforge.tuner.modes import DECODE_STEPS
from kforge.tuner.options import TuneOptions
from kforge.tuner.progress import Silent
from kforge.tuner.promotion import EngineVerdict, Promotion
from kforge.tuner.tune import awaiting_engine
from kforge.tuner.winners import Seconds, record_of

VERDICT = EngineVerdict("p", "decode", 0.02, 0.005, 0.04, True, 100, 40)
MODE = Mode(Phase.DECODE, 2, 1, 64)


@pytest.mark.parametrize(
    ("changes", "promotes"),
    [
        ({}, True),
        ({"gain": 0.0, "lower": -0.008}, True),  # not slower is enough: the micro win was judged already
        ({"gain": -0.02, "lower": -0.03}, False),
        ({"gain": 0.0, "lower": -0.03}, False),
        ({"gain": 0.0, "lower": -0.03, "floor": 0.04}, True),  # an engine differs from itself by more
        ({"gain": -0.02, "lower": -0.03, "floor": 0.04}, False),
        ({"same_tokens": False}, False),
        ({"calls": 0}, False),
    ],
    ids=str,
)
def test_a_kernel_is_promoted_only_when_the_engine_is_not_slower_and_says_the_same(changes, promotes):
    verdict = dataclasses.replace(VERDICT, **changes)
    assert verdict.promotes is promotes
    assert verdict.reason


def test_the_engine_runs_with_and_without_a_winner_and_proves_that_it_was_called(tmp_path):
    from kforge.backends.cpp.build import build

    synth("tiny-llama-test", "q4_0", tmp_path / "tiny.gguf")
    model, target = load(tmp_path / "tiny.gguf"), load_target("host")
    options = TuneOptions("tiny", batches=(2,), context=64, prefill=64, threads=1)
    rows = workloads(model, (2,), (64,), 0, StepOptions(kv=options.kv, act=options.act))
    workload = next(r.workload for r in rows if r.kind is CallKind.DOWN)
    candidate = default_kernel(workload.problem, target)
    # The same machine code under another name: a winner that gives nothing, but that must be seen to run.
    candidate = dataclasses.replace(candidate, source=candidate.source + "\n// renamed\n")
    artifact = build(candidate, target)
    assert isinstance(artifact, Artifact)
    verdict = Verdict(Decision.ACCEPTED, candidate.hash, "d", 0.02, 0.01, 0.03, 50, 5, 0.0)
    with Registry.open(tmp_path / "registry.db") as registry, RunFolder.create(tmp_path / "runs", "tiny") as folder:
        registry.begin_run(folder.id, "tiny", target.identity, folder.path)
        before = read(tmp_path / "registry.db")
        record = record_of(candidate, artifact, verdict, None, workload, target, folder.id, Seconds(1e-6, 1e-6))
        number = registry.accept(record, artifact.data, candidate.source, {})
        accepted = [dataclasses.replace(record, id=number)]
        pairs = EnginePairs(model, options, DefaultKernels(target))
        promotion = Promotion(pairs, registry, folder, Silent())
        # While the time reaches no engine run, or only some of them, nothing is promoted and the next tune goes on.
        assert promotion.promote(before, read(tmp_path / "registry.db"), accepted, [MODE], lambda: True) == []
        assert read(tmp_path / "registry.db").kernels[0].state is KernelState.ACCEPTED
        assert [k.id for k in awaiting_engine(registry, "next", target)] == [number]
        verdicts = promotion.promote(before, read(tmp_path / "registry.db"), accepted, [MODE], lambda: False)
        assert [v.same_tokens for v in verdicts] == [True]
        assert verdicts[0].calls > 40 and verdicts[0].floor > 0
        assert len(folder.of(Event.PROMOTION)) == 1
        state = read(tmp_path / "registry.db").kernels[0].state
        assert (state is KernelState.PROMOTED) == verdicts[0].promotes
        # A second time nothing is measured again: the journal already says it.
        assert promotion.promote(before, read(tmp_path / "registry.db"), accepted, [MODE], lambda: False) == verdicts


def test_an_engine_is_run_without_making_text(tmp_path):
    """A folder need not hold a tokenizer for its kernels to be compared."""
    synth("tiny-llama-test", "w8a8", folder := tmp_path / "model", 1)
    (folder / "tokenizer.json").unlink()
    default = DefaultKernels(load_target("host"))
    pairs = EnginePairs(load(folder), TuneOptions("tiny", threads=1, kv="i8"), default)
    with pairs.driver(default, MODE) as driver:
        assert len(driver.burst().output) == DECODE_STEPS * MODE.sequences
