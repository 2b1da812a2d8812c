"""``kforge tune`` of an imported operator: generated templates compete, what the judge accepts is served at once."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from imported_operators import FIXED, NAME, SOFTMAX, stored, template

from kforge.backends.generic import TemplateText
from kforge.backends.handwritten import from_file
from kforge.cli.run_document import buckets_of
from kforge.cli.run_tables import python_lines
from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState, Tier
from kforge.core.target import Target
from kforge.core.trial import Candidate, Decision, NumericsClass, RejectReason, Timing, Trial, Verdict
from kforge.core.workload import Workload
from kforge.harness.proof import Provenance
from kforge.operators.imported import Imported
from kforge.registry.ask import ABI_VERSION, ask
from kforge.registry.database import Registry
from kforge.targets import host, load_target
from kforge.targets.files import save_target
from kforge.tuner import tune_operator as tuning
from kforge.tuner.contenders import Incumbent
from kforge.tuner.finals import bucket_shapes
from kforge.tuner.generated import placed
from kforge.tuner.journal import Event, RunFolder, trial_to_json
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import shares
from kforge.tuner.points import Space
from kforge.tuner.progress import Silent
from kforge.tuner.report import render
from kforge.tuner.report_outcomes import PROMOTED, engine_states
from kforge.tuner.report_text import told
from kforge.tuner.run_view import RunView, view_of
from kforge.tuner.serving import Serving
from kforge.tuner.tune_operator import hand_in, imported, operator_task, promote_judged, tune_operator

OPTIONS = TuneOptions(operator=NAME, batches=(), threads=1, budget_seconds=120.0)
TARGET = load_target("zen4")
_ROWS = """
    const float *x = static_cast<const float *>(launch->tensors[0].data);
    float *out = static_cast<float *>(launch->tensors[1].data);
    for (int64_t b = launch->thread; b < launch->axes[0]; b += launch->threads) {
        const float *row = x + 96 * b;
        float *to = out + 96 * b;
        float top = row[0], total = 0.0f;
        for (int k = 1; k < 96; ++k) top = (row[k] > top || row[k] != row[k]) ? row[k] : top;
        for (int k = 0; k < 96; ++k) total += to[k] = kf::exp(row[k] - top);
        for (int k = 0; k < 96; ++k) to[k] = to[k] / total;
        %s
    }"""
SLOW, FAST = _ROWS % "for (volatile int spin = 0; spin < 4000; ++spin) {}", _ROWS % ""


TEXTS = [TemplateText("plain", template(SLOW)), TemplateText("a_better_one", template(FAST))]


@pytest.fixture(scope="session")
def machine() -> Target:
    """Probed once, where a data folder for each test would have it probed for each."""
    return host()


@pytest.fixture
def operator(machine: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imported:
    monkeypatch.setenv("KFORGE_HOME", str(tmp_path / "home"))
    save_target(machine, tmp_path / "home" / "targets" / "host.toml")
    return stored()


def test_only_an_imported_operator_is_found_by_its_name(operator: Imported) -> None:
    assert imported(NAME) is operator
    assert imported("linear") is None and imported("smollm2-135m") is None and imported("some/model.gguf") is None


def test_without_a_batch_it_is_tuned_at_the_one_that_it_was_imported_with(operator: Imported) -> None:
    task = operator_task(operator, OPTIONS)
    assert task.problem == operator.problem and [b.workload.axes for b in task.buckets] == [{"B": 24}]
    two = operator_task(operator, dataclasses.replace(OPTIONS, batches=(3, 4, 20)))
    assert [b.workload.axes["B"] for b in two.buckets] == [4, 24]  # 3 and 4 share a bucket
    assert not any(bucket.calls for bucket in two.buckets)


def test_a_function_of_one_shape_has_no_other_batch(operator: Imported) -> None:
    fixed = stored(FIXED, "one_shape", 1)
    assert [b.workload.axes for b in operator_task(fixed, OPTIONS).buckets] == [{"B": 1}]
    with pytest.raises(KforgeError, match="one shape only"):
        operator_task(fixed, dataclasses.replace(OPTIONS, batches=(2,)))


def test_buckets_that_no_mode_calls_weigh_the_same(operator: Imported) -> None:
    task = operator_task(operator, dataclasses.replace(OPTIONS, batches=(4, 24)))
    keys = [bucket.workload.key for bucket in task.buckets]
    assert shares([task], {keys[0]: 1e-6, keys[1]: 1e-3}) == {keys[0]: 0.5, keys[1]: 0.5}


def test_a_bucket_is_judged_at_the_smallest_batch_that_lands_in_it(operator: Imported) -> None:
    assert [w.axes["B"] for w in bucket_shapes(operator.workload)] == [24, 17]
    assert len(bucket_shapes(stored(FIXED, "one_shape", 1).workload)) == 1
    alone = stored(SOFTMAX, "five_rows", 5)  # 4 has a bucket of its own
    assert len(bucket_shapes(alone.workload)) == 1


def test_generated_templates_lie_in_the_runs_folder_untrusted_and_the_first_serves_untuned(
    operator: Imported, tmp_path: Path
) -> None:
    left = tmp_path / "run" / "generated" / "cpp" / NAME / "of_before.cc.j2"
    left.parent.mkdir(parents=True)
    left.write_text("{#- what an earlier process was killed over")
    made = placed(TEXTS, NAME, tmp_path / "run")
    assert [t.path for t in made] == [f"cpp/{NAME}/plain.cc.j2", f"cpp/{NAME}/a_better_one.cc.j2"]
    assert not any(t.trusted for t in made) and all(t.root.is_relative_to(tmp_path / "run") for t in made)
    demanding = dataclasses.replace(made[1], header=dataclasses.replace(made[1].header, requires=("avx2",)))
    task = operator_task(operator, OPTIONS)
    assert Space(task, [made[0], demanding], TARGET, made[0].path).default(0).template == made[0].path
    assert Space(task, [made[0], demanding], TARGET).default(0).template == demanding.path


def test_a_point_is_rendered_once(operator: Imported, tmp_path: Path) -> None:
    space = Space(operator_task(operator, OPTIONS), placed(TEXTS, NAME, tmp_path), TARGET)
    point = space.default(0)
    first = space.render(point)
    (tmp_path / "generated" / point.template).unlink()
    assert space.render(point) is first and first.proposer == "builtin" and first.numerics is NumericsClass.RELAXED


def record(operator: Imported, run: str, source: str = "s") -> KernelRecord:
    import hashlib

    def digest(data: str) -> str:
        return hashlib.sha256(data.encode()).hexdigest()

    return KernelRecord(
        "c" * 16, operator.problem, (("B", 24),), host().identity, "host", operator.version, ABI_VERSION,
        NumericsClass.RELAXED, (), "cpp", f"cpp/{NAME}/plain.cc.j2", "h", (), digest(source), digest("artifact"), "",
        1e-6, 2e-6, 0.5, 0.4, run)


def test_what_the_judge_accepted_is_promoted_once_and_answers_look_ups(operator: Imported, tmp_path: Path) -> None:
    with Registry.open(tmp_path / "registry.db") as registry:
        for run in ("now", "before"):
            registry.begin_run(run, NAME, host().identity, tmp_path)
        number = registry.accept(record(operator, "now"), b"artifact", "s", {})
        other = registry.accept(record(operator, "before"), b"artifact", "s", {})
        assert promote_judged(registry, "now") == promote_judged(registry, "now") == 1
        told = [(event.state, event.reason) for event in registry.events(number)]
        assert [state for state, _ in told] == [KernelState.ACCEPTED, KernelState.PROMOTED]
        assert "no engine" in told[1][1]
        assert len(registry.events(other)) == 1
        answer = ask(registry.snapshot(), NAME, {}, host())
        assert answer.kernel is not None and (answer.kernel.id, answer.tier) == (number, Tier.EXACT)


def test_the_end_says_that_the_judge_alone_promoted() -> None:
    assert "judge's word alone" in Serving(1, 1, engine=False).text
    assert "judge" not in Serving(1, 1).text and "judge" not in Serving(0, 1, engine=False).text
    assert Serving(0, 0, engine=False).text == "None was promoted: the generated default serves."


def journal(root: Path, operator: Imported, finished: bool = True) -> RunView:
    """A run of one bucket in which a kernel was accepted."""
    key, bucket = operator.problem.key, operator.workload.key
    with RunFolder.create(root, NAME) as folder:
        started = {"options": OPTIONS.to_json(), "target": "host", "identity": "f", "problem": key}
        folder.write(Event.STARTED, started)
        folder.write(Event.TASK, {"task": key, "points": 4, "promise": 0.5, "refused": [],
                                  "buckets": [{"bucket": bucket, "share": 1.0, "limit": 1e-6, "calls": {}}]})
        for n, seconds in enumerate((4e-6, 2e-6)):
            trial = Trial(f"c{n}", bucket, (), f"cpp/{NAME}/plain.cc.j2", Timing(seconds, 0.01, 5, 40))
            folder.write(Event.TRIAL, {"task": key, "bucket": bucket, "rows": 0, "proposer": "builtin",
                                       "trial": trial_to_json(trial)})
        verdict = Verdict(Decision.ACCEPTED, "c1", "c0", 0.9, 0.8, 1.0, 50, 5, 0.01)
        folder.write(Event.VERDICT, {"task": key, "workload": bucket, "bucket": bucket, "rows": 0,
                                     "verdict": dataclasses.asdict(verdict)})
        folder.write(Event.SETTLED, {"task": key, "rows": 0, "before": 0, "buckets": ["B=24"], "templates": "t",
                                     "accepted": 1})
        if finished:
            serves = dataclasses.asdict(Serving(1, 1, engine=False))
            folder.write(Event.FINISHED, {"trials": 2, "accepted": 1, "kept": 0, "serving": serves})
    return view_of(folder.path)


def test_a_report_of_such_a_run_speaks_of_no_engine_and_no_tokens(operator: Imported, tmp_path: Path) -> None:
    view = journal(tmp_path, operator)
    assert engine_states(view) == {operator.problem.key: PROMOTED}
    page = render(view)
    assert NAME in page and "B=24" in page and "judge&#39;s word alone" in page
    assert "Tokens per second" not in page and "KV cache" not in page and "engine decodes" not in page
    lines = "\n".join(told(view))
    assert NAME in lines and "table" not in lines and "1 kernel promoted" in lines


def test_json_has_each_buckets_verdict_and_the_kernel_that_came_of_it(operator: Imported, tmp_path: Path) -> None:
    view = journal(tmp_path / "runs", operator)
    stored_kernel = dataclasses.replace(record(operator, view.id), candidate_hash="c1", id=7,
                                        state=KernelState.PROMOTED)
    others = [dataclasses.replace(stored_kernel, id=8, run="another"),
              dataclasses.replace(stored_kernel, id=9, bucket=(("B", 4),))]
    (bucket,) = buckets_of(view, [*others, stored_kernel])
    assert (bucket["bucket"], bucket["trials"], bucket["failed"], bucket["outcome"]) == ("B=24", 2, 0, PROMOTED)
    assert (bucket["kernel"], bucket["state"]) == (7, "promoted")
    assert (bucket["default_seconds"], bucket["best_seconds"], bucket["limit_seconds"]) == (4e-6, 2e-6, 1e-6)
    verdict = bucket["verdict"]
    assert (verdict["decision"], verdict["gain"], verdict["lower"], verdict["upper"]) == ("accepted", 0.9, 0.8, 1.0)
    json.dumps(bucket)
    (unstored,) = buckets_of(view, [])
    assert unstored["kernel"] is None and unstored["verdict"] == verdict
    (going_on,) = buckets_of(journal(tmp_path / "other", operator, finished=False), [])
    assert "when the run ends" in going_on["outcome"]


def test_the_end_tells_how_python_finds_the_kernel(operator: Imported, tmp_path: Path) -> None:
    view = journal(tmp_path, operator)
    lines = python_lines(view, Serving(1, 1, engine=False))
    assert any(line.strip() == f'kernel = ask(open_snapshot(), "{NAME}", {{"B": 24}}).kernel' for line in lines)
    assert python_lines(view, Serving(0, 0, engine=False)) == []
    of_a_model = dataclasses.replace(view, options=TuneOptions(model="m"))
    assert python_lines(of_a_model, Serving(1, 1)) == []


class Bench:
    """A harness whose judge says what it is told to."""

    provenance = Provenance(False, ())

    def __init__(self, decision: Decision) -> None:
        self.target, self.decision = host(), decision
        self.judged: list[dict[str, int]] = []

    def judge(self, candidate: Candidate, incumbent: Candidate, shapes: Sequence[Workload]) -> Verdict:
        self.judged = [workload.axes for workload in shapes]
        return Verdict(self.decision, candidate.hash, incumbent.hash, 0.5, 0.4, 0.6, 50, 5, 0.01)

    def evaluate(self, candidate: Candidate, workload: Workload) -> Trial:
        return Trial(candidate.hash, workload.key, (), candidate.template, Timing(1e-6, 0.01, 5, 40))


@pytest.mark.parametrize("decision", [Decision.ACCEPTED, Decision.REJECTED])
def test_a_kernel_that_is_handed_in_serves_on_the_judges_word(operator: Imported, tmp_path: Path,
                                                              decision: Decision) -> None:
    (file := tmp_path / "mine.cc.j2").write_text(template(FAST))
    candidate = from_file(file, operator.problem, host(), {}, NumericsClass.RELAXED)
    default = dataclasses.replace(candidate, source="// the generated default")
    bench = Bench(decision)
    with Registry.open() as registry:
        handed = hand_in(candidate, Workload.of(operator.problem, B=20), Incumbent(default, None, "the default"),
                         bench, registry)  # type: ignore[arg-type]
        assert bench.judged == [{"B": 24}, {"B": 17}] and handed.bucket == (("B", 24),)
        answer = ask(registry.snapshot(), NAME, {"B": 20}, host())
        if decision is Decision.REJECTED:
            assert handed.kernel is None and answer.kernel is None
            return
        assert answer.kernel is not None and answer.kernel.id == handed.kernel
        assert (answer.kernel.numerics, answer.kernel.proposer) == (NumericsClass.RELAXED, "hand")
        told_ = [(event.state, event.reason) for event in registry.events(answer.kernel.id)]
        assert told_[-1] == (KernelState.PROMOTED, tuning.ON_THE_JUDGES_WORD)


def test_a_run_that_goes_on_says_that_its_end_promotes(operator: Imported, tmp_path: Path) -> None:
    (state,) = engine_states(journal(tmp_path, operator, finished=False)).values()
    assert "when the run ends" in state


def test_a_run_does_not_go_on_with_another_function_of_the_same_name(operator: Imported, tmp_path: Path) -> None:
    journal(tmp_path / "runs", operator, finished=False)
    other = stored(FIXED, NAME, 1)
    (path,) = (tmp_path / "runs").iterdir()
    with (RunFolder.resume(path) as folder, Registry.open(tmp_path / "registry.db") as registry,
          pytest.raises(KforgeError, match=f"was begun for {NAME}")):
        tune_operator(other, OPTIONS, folder, registry, host(), Silent())


def kforge(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KFORGE_HOME": str(home), "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", "kforge.cli.main", *words], capture_output=True, text=True, env=env,
                          timeout=280, check=False)


@pytest.mark.parametrize(("words", "says"), [
    (("--context", "64"), "are of models"),
    (("--batch", "0"), "--batch '0'"),
    (("--agent", "openai:m"), "openai"),
])
def test_options_of_models_are_refused_in_one_sentence(operator: Imported, tmp_path: Path, words: tuple[str, ...],
                                                       says: str) -> None:
    done = kforge(tmp_path / "home", "tune", NAME, *words, "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_faster_template_is_judged_promoted_and_kept(operator: Imported, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "templates_for", lambda graph, name: TEXTS)  # of which one is faster for certain
    with Registry.open(tmp_path / "registry.db") as registry:
        with RunFolder.create(tmp_path / "runs", NAME) as folder:
            first = tune_operator(operator, OPTIONS, folder, registry, host(), Silent())
        assert first.table is None and not first.engine
        tried = {d["trial"]["template"].rsplit("/", 1)[-1] for d in folder.of(Event.TRIAL)}
        assert tried == {"plain.cc.j2", "a_better_one.cc.j2"}
        assert {d["proposer"] for d in folder.of(Event.TRIAL)} <= {"builtin", "default"}
        (verdict,) = (d["verdict"] for d in folder.of(Event.VERDICT))
        won = int(verdict["decision"] == Decision.ACCEPTED)
        assert won or verdict["reason"] == RejectReason.TOO_NOISY  # of this machine, now
        assert first.serving == Serving(won, won, 0, engine=False)
        answer = ask(registry.snapshot(), NAME, {"B": 20}, host())
        assert (answer.kernel is not None) == bool(won)
        if answer.kernel is not None:
            assert answer.kernel.template.endswith("a_better_one.cc.j2") and answer.kernel.gain > 0.1

        # Nothing is measured twice, and a second run finds it settled.
        with RunFolder.resume(folder.path) as again:
            before = len(again.of(Event.TRIAL))
            repeated = tune_operator(operator, OPTIONS, again, registry, host(), Silent())
            assert len(again.of(Event.TRIAL)) == before and repeated.serving.kernels == won
        with RunFolder.create(tmp_path / "runs", NAME) as another:
            second = tune_operator(operator, OPTIONS, another, registry, host(), Silent())
        assert second.search.trials == 0 and second.search.kept == (operator.problem.key,)
        assert second.serving == Serving(0, won, 0, engine=False)


@pytest.mark.slow
def test_the_command_tunes_what_was_generated_from_a_graph(operator: Imported, tmp_path: Path) -> None:
    home, runs = tmp_path / "home", tmp_path / "runs"
    done = kforge(home, "tune", NAME, "--budget", "40s", "--runs-dir", str(runs), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trials"] > 0 and result["table"] == [] and result["engine"] == []
    assert result["folder"] == str(runs / result["run"]) and result["seconds"] > 0
    (bucket,) = result["buckets"]
    assert bucket["bucket"] == "B=24" and bucket["trials"] > 0 and bucket["best_seconds"] > 0
    assert (bucket["kernel"] is not None) == (result["serving"]["promoted"] > 0)
    assert "searching" in done.stderr  # what goes on is told beside the JSON
    found = json.loads(kforge(home, "lookup", NAME, "--json").stdout)
    assert (found["kernel"] is not None) == (result["serving"]["kernels"] > 0)
    shown = kforge(home, "runs", "show", result["run"], "--runs-dir", str(runs))
    assert shown.returncode == 0 and result["serving"]["text"] in shown.stdout
    reported = kforge(home, "runs", "report", result["run"], "--runs-dir", str(runs))
    assert reported.returncode == 0, reported.stderr
    resumed = kforge(home, "tune", "--resume", result["run"], "--runs-dir", str(runs))
    assert resumed.returncode == 0 and "is finished" in resumed.stderr
