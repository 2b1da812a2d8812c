"""Tuning for a chip that is not here: everything is built and checked, nothing is timed or served."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState, Tier
from kforge.core.trial import TrialState
from kforge.models import load
from kforge.models.synth import synth
from kforge.native.compilers import find_compilers
from kforge.registry.ask import ask
from kforge.registry.database import Registry
from kforge.targets import load_target
from kforge.targets.cpu import read_cpu
from kforge.tuner import offline
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.offline import KEPT, require_offline, tune_offline
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import plan
from kforge.tuner.points import Space
from kforge.tuner.progress import Silent
from kforge.tuner.run_view import view_of
from kforge.tuner.tune import step_rows
from kforge.tuner.waiting import retire_timed, waiting_points

pytestmark = pytest.mark.slow


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A processor like this one with more cores: another target, whose kernels this machine can check."""
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    here = read_cpu()
    return dataclasses.replace(load_target("zen4"), name="elsewhere", model="a larger one", arch=here.arch,
                               features=here.features, compilers=find_compilers())


@pytest.fixture
def model(tmp_path):
    synth("tiny-llama-test", "q4_0", tmp_path / "tiny.gguf")
    return load(str(tmp_path / "tiny.gguf"))


def options(**changes) -> TuneOptions:
    given = {"model": "tiny", "budget_seconds": 120.0, "batches": (1,), "context": 32, "prefill": 32,
             "only": "rms_norm", "offline": True, "target": "elsewhere"}
    return TuneOptions(**{**given, **changes})


def test_candidates_are_built_checked_kept_and_never_served(tmp_path, elsewhere, model, monkeypatch):
    runs = tmp_path / "runs"
    with Registry.open(tmp_path / "home" / "registry.db") as registry:
        with RunFolder.create(runs, "tiny") as folder:
            result = tune_offline(model, options(), folder, registry, elsewhere, Silent())
        view = view_of(folder.path)
        assert view.offline and view.finished and view.checked == result.checked > 0
        states = {p.trial.state for p in view.tried}
        assert states == {TrialState.CHECKED} and all(p.trial.timing is None for p in view.tried)
        assert all(p.trial.checked == "host" and p.trial.artifact_hash for p in view.tried)
        kernels = registry.snapshot().kernels
        assert len(kernels) == result.kept > 0
        assert {k.state for k in kernels} == {KernelState.CHECKED} and {k.seconds for k in kernels} == {0.0}
        per_bucket = {(k.problem, k.bucket) for k in kernels}
        assert len(kernels) <= KEPT * len(per_bucket)
        assert "none timed" in result.text and f"of {result.reached} of" in result.text
        assert result.reached == len({p.task for p in view.tried}) <= result.problems

        # The chip's own look-up finds nothing to serve, and says that something waits.
        one = kernels[0]
        answer = ask(registry.snapshot(), one.problem.operator, {**dict(one.problem.static), **dict(one.bucket)},
                     elsewhere)
        assert answer.tier is Tier.DEFAULT
        assert any("never timed" in step.reason for step in answer.trace)

        # When it appears, a tune tries them first; once they were timed they wait no longer.
        task = next(t for t in plan(step_rows(model, options())) if t.problem == one.problem.without_layout)
        run = offline._Offline(options(), folder, registry, elsewhere, Silent(), require_offline(elsewhere))
        space = Space(task, run._templates(task), elsewhere)
        first = waiting_points(registry.snapshot(), space, elsewhere)
        assert first and all(point in space for point in first)
        assert waiting_points(registry.snapshot(), space, dataclasses.replace(elsewhere, cores=24)) == first
        assert retire_timed(registry, space, elsewhere, {}, folder.id) == 0
        assert retire_timed(registry, space, elsewhere, first, folder.id) > 0
        assert waiting_points(registry.snapshot(), space, elsewhere) == []

        # A resumed run does nothing twice.
        lines = len(RunFolder.lines_of(folder.path))
        monkeypatch.setattr(offline, "check_offline", lambda *_, **__: pytest.fail("checked again"))
        with RunFolder.resume(folder.path) as again:
            repeated = tune_offline(model, options(), again, registry, elsewhere, Silent())
        assert repeated.trials == result.trials
        assert len(RunFolder.lines_of(folder.path)) == lines + 1  # it is finished once more


def test_a_wrong_kernel_is_a_failed_trial_and_is_not_kept(tmp_path, elsewhere, model, monkeypatch):
    from kforge.core.trial import Failure, FailureClass

    real = offline.check_offline

    def wrong(backend, candidate, *rest, **more):
        # What the kernel writes is spoilt in its source, so that the real check finds it.
        broken = dataclasses.replace(candidate, source=candidate.source.replace("mul(mul(load(", "add(mul(load("))
        found = real(backend, broken, *rest, **more)
        assert isinstance(found, Failure)
        assert found.kind in (FailureClass.INEXACT, FailureClass.INCORRECT)
        return found

    monkeypatch.setattr(offline, "check_offline", wrong)
    with Registry.open(tmp_path / "home" / "registry.db") as registry:
        with RunFolder.create(tmp_path / "runs", "tiny") as folder:
            result = tune_offline(model, options(), folder, registry, elsewhere, Silent())
        assert result.failed == result.trials > 0 and result.kept == 0
        assert registry.snapshot().kernels == ()
        assert folder.of(Event.FINISHED)[-1]["checked"] == 0


def test_what_nothing_builds_for_is_refused(monkeypatch):
    with pytest.raises(KforgeError, match="aws-trainium2 is only described: no backend of kforge builds for it"):
        require_offline(load_target("aws-trainium2"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KforgeError, match="nothing can be built for neoverse-v2 here: cpp: no compiler for aarch64"):
        require_offline(load_target("neoverse-v2"))


def test_the_journal_of_an_offline_run_is_shown(tmp_path, elsewhere, model):
    from kforge.tuner.report import render
    from kforge.tuner.report_text import told

    with Registry.open(tmp_path / "home" / "registry.db") as registry, RunFolder.create(tmp_path / "r", "t") as folder:
        tune_offline(model, options(max_trials=1), folder, registry, elsewhere, Silent())
    view = view_of(folder.path)
    assert any("built and checked, none timed" in line for line in told(view))
    assert "built, checked, not timed" in render(view)
    assert json.loads((folder.path / "journal.jsonl").read_text().splitlines()[0])["data"]["offline"] is True
