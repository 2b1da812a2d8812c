"""Templates that somebody proposes while a run searches: their lanes, their trials, and what their author hears."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kforge.backends import templates
from kforge.core.errors import KforgeError
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import FailureClass
from kforge.harness import Harness
from kforge.models import load
from kforge.models.synth import synth
from kforge.registry.database import Registry
from kforge.targets import host
from kforge.tuner.contest import Contest, Lane
from kforge.tuner.coordinator import Coordinator
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.measure import Measurer
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import Task, plan
from kforge.tuner.points import Space
from kforge.tuner.progress import Silent
from kforge.tuner.proposals import Outcome, Proposal, Situation
from kforge.tuner.proposing import TEMPLATES, Proposing
from kforge.tuner.search import TaskSearch, open_storage
from kforge.tuner.tune import step_rows

NORM = "cpp/rms_norm/portable.cc.j2"


class Scripted:
    """Proposes what it was given, as soon as it is asked about the task."""

    def __init__(self, write: Callable[[Situation], list[Proposal]]) -> None:
        self._write = write
        self._ready: list[Proposal] = []
        self.asked: list[Situation] = []
        self.told: list[Outcome] = []
        self.deserved = 8

    def ask(self, situation: Situation) -> bool:
        if not self.asked:
            self._ready = self._write(situation)
        self.asked.append(situation)
        return bool(self._ready)

    def take(self) -> list[Proposal]:
        ready, self._ready = self._ready, []
        return ready

    def tell(self, outcome: Outcome) -> None:
        self.told.append(outcome)

    def trials(self, proposal: str) -> int:
        return self.deserved

    @property
    def working(self) -> bool:
        return False

    def close(self) -> None:
        return


def put(folder: Path, name: str, change: Callable[[str], str]) -> templates.Template:
    """A changed copy of the shipped norm, in a run's folder."""
    root = folder / TEMPLATES
    shutil.copytree(shipped("templates") / "kernels" / "cpp" / "common", root / "cpp" / "common", dirs_exist_ok=True)
    file = root / "cpp" / "rms_norm" / f"{name}.cc.j2"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(change((shipped("templates") / "kernels" / NORM).read_text()))
    return next(t for t in templates.load("rms_norm", root) if t.path.endswith(f"/{name}.cc.j2"))


def three_in_flight(text: str) -> str:
    return text.replace("choices = [1, 2, 4, 8]\ndefault = 4", "choices = [3]\ndefault = 3")


def wrong(text: str) -> str:
    return three_in_flight(text).replace("fma(y{{ i }}, y{{ i }}, sum{{ i }})", "fma(y{{ i }}, y{{ i }}, zero())")


@pytest.fixture
def rows(tmp_path: Path):
    synth("tiny-llama-test", "q4_0", tmp_path / "tiny.gguf")
    options = TuneOptions(str(tmp_path / "tiny.gguf"), budget_seconds=240.0, batches=(2,), context=64, prefill=64,
                          threads=1, only="rms_norm", max_trials=24, retune=True)
    return options, step_rows(load(tmp_path / "tiny.gguf"), options)


def run(tmp_path: Path, options: TuneOptions, rows: list, scripted: Scripted, folder: RunFolder) -> None:
    if not folder.lines:
        folder.write(Event.STARTED, {"options": options.to_json()})
    with Registry.open(tmp_path / "registry.db") as registry:
        registry.begin_run(folder.id, options.model, host().identity, folder.path)
        Coordinator(options, folder, registry, host(), Silent(), scripted).run(plan(rows))


def test_a_proposal_competes_and_its_author_hears_how(tmp_path: Path, rows) -> None:
    options, calls = rows

    def write(situation: Situation) -> list[Proposal]:
        def proposal(n: int, name: str, change: Callable[[str], str]) -> Proposal:
            return Proposal(f"p{n}", situation.task.problem.key, put(folder.path, name, change), "", "latency",
                            "three tokens in flight", 0.1, "scripted")

        return [proposal(1, "three", three_in_flight), proposal(2, "wrong", wrong), proposal(3, "portable", str),
                proposal(4, "elsewhere", lambda t: t.replace('numerics = "exact"', 'numerics = "exact"\n'
                                                                                   "applies = \"H == 7\""))]

    with RunFolder.create(tmp_path / "runs", "tiny") as folder:
        scripted = Scripted(write)
        run(tmp_path, options, calls, scripted, folder)
        tried = {d["trial"]["template"]: d for d in folder.of(Event.TRIAL)}
        assert tried["cpp/rms_norm/three.cc.j2"]["proposer"] == "scripted"
        assert tried["cpp/rms_norm/three.cc.j2"]["trial"]["failure"] is None
        assert {d["id"] for d in folder.of(Event.PROPOSAL)} == {"p1", "p2", "p3", "p4"}
        heard = {o.proposal.id: o for o in scripted.told}
        assert heard["p2"].failure is not None
        assert heard["p2"].failure.kind in (FailureClass.INEXACT, FailureClass.INCORRECT)
        assert heard["p3"].failure is not None and "taken" in heard["p3"].failure.reason
        assert heard["p4"].failure is not None and "H == 7" in heard["p4"].failure.reason
        later = scripted.asked[-1]
        assert {o.proposal.id for o in later.outcomes} == {"p1", "p2"}
        assert later.tried[0].trials and later.empty_call is not None and later.empty_call.seconds > 0
        assert len(folder.of(Event.EMPTY_CALL)) == 1
        seen = later.inspect(later.tried[0])
        assert seen is not None and any("fmadd" in line for line in seen.loops[0].lines)

    # A resumed run knows the proposals from its folder, and measures nothing twice.
    with RunFolder.resume(folder.path) as again:
        before = len(again.of(Event.TRIAL))
        silent = Scripted(lambda _: [])
        run(tmp_path, options, calls, silent, again)
        assert len(again.of(Event.TRIAL)) == before
        assert len(again.of(Event.PROPOSAL)) == 4


def test_a_proposal_that_was_edited_does_not_compete_after_a_resume(tmp_path: Path, rows) -> None:
    options, calls = rows
    with RunFolder.create(tmp_path / "runs", "tiny") as folder:
        template = put(folder.path, "three", three_in_flight)
        folder.write(Event.STARTED, {"options": options.to_json()})
        key = next(r.workload.problem.without_layout.key for r in calls if r.workload.problem.operator == "rms_norm")
        folder.write(Event.PROPOSAL, {"id": "p1", "task": key, "path": template.path, "hash": "another", "parent": "",
                                      "bottleneck": "", "move": "", "predicted": 0.0, "author": "somebody"})
        run(tmp_path, options, calls, Scripted(lambda _: []), folder)
        assert all("three" not in d["trial"]["template"] for d in folder.of(Event.TRIAL))


class Slow(Scripted):
    """Thinks until the machine has had nothing to do for a while, or has used up what was its idea's."""

    def __init__(self, write: Callable[[Situation], list[Proposal]], folder: RunFolder) -> None:
        super().__init__(write)
        self._folder = folder
        self._looks = 0
        self.before = 0

    @property
    def working(self) -> bool:
        return bool(self.asked) and (self._looks < 10 or bool(self._ready))

    def take(self) -> list[Proposal]:
        trials = len(self._folder.of(Event.TRIAL))
        self._looks = self._looks + 1 if trials == self.before else 0
        self.before = trials
        return super().take() if self._looks >= 10 or trials >= 24 else []


def test_trials_are_left_for_what_is_being_thought_of(tmp_path: Path, rows) -> None:
    options, calls = rows

    def write(situation: Situation) -> list[Proposal]:
        return [Proposal("p1", situation.task.problem.key, put(folder.path, "three", three_in_flight), "", "latency",
                         "three tokens in flight", 0.1, "scripted")]

    with RunFolder.create(tmp_path / "runs", "tiny") as folder:
        slow = Slow(write, folder)
        run(tmp_path, options, calls, slow, folder)
        assert any("three" in d["trial"]["template"] for d in folder.of(Event.TRIAL))
        assert len(folder.of(Event.TRIAL)) >= 20, "what the idea did not want was for the shipped templates"


@pytest.fixture
def contest(tmp_path: Path, rows) -> Contest:
    _, calls = rows
    task = next(t for t in plan(calls) if t.problem.operator == "rms_norm")
    target: Target = host()
    storage = open_storage(tmp_path)
    buckets = [b.workload.key for b in task.buckets]
    lanes = []
    for n, found in enumerate((templates.load("rms_norm"), [put(tmp_path, "three", three_in_flight)])):
        space = Space(task, found, target)
        proposal = Proposal("p1", task.problem.key, found[0], "", "", "", 0.0, "me") if n else None
        lanes.append(Lane(space, TaskSearch(space, storage, buckets, space.defaults, name=str(n)), proposal))
    return Contest(lanes, dict.fromkeys(buckets, 1.0), dict.fromkeys(buckets, 1e-6))


def tell(contest: Contest, lane: int, seconds: float, number: int = 0) -> None:
    where = contest.lanes[lane]
    where.rounds += 1
    where.search.tell(where.space.points[number], {b.workload.key: seconds for b in contest.task.buckets})


def test_a_lane_that_nobody_tried_comes_first_and_one_far_behind_gets_no_more(contest: Contest) -> None:
    tell(contest, 0, 1e-5)
    assert contest.next_lane() is contest.lanes[1]
    tell(contest, 1, 9e-5)
    assert list(contest.live()) == [contest.lanes[0]]
    assert contest.next_lane() is contest.lanes[0]


def test_a_lane_gets_no_more_trials_than_it_deserves(contest: Contest) -> None:
    tell(contest, 0, 1e-5)
    contest.lanes[1].deserved = 1
    assert contest.next_lane() is contest.lanes[1]
    tell(contest, 1, 1e-5)
    assert contest.lanes[1].left == 0 and list(contest.live()) == [contest.lanes[0]]
    contest.lanes[1].deserved = 2
    assert contest.lanes[1] in list(contest.live())


def test_the_fastest_of_all_lanes_leads_the_ranking_and_sets_the_promise(contest: Contest) -> None:
    key = contest.task.buckets[0].workload.key
    tell(contest, 0, 2e-5)
    tell(contest, 1, 1e-5)
    assert contest.ranking(key, 0)[0].template == "cpp/rms_norm/three.cc.j2"
    assert contest.promise == pytest.approx(len(contest.task.buckets) * (1e-5 - 1e-6))
    assert contest.render(contest.ranking(key, 0)[0]).proposer == "me"
    assert contest.render(contest.ranking(key, 0)[1]).proposer == "builtin"


def test_machine_code_that_was_measured_is_not_measured_again(tmp_path: Path, rows) -> None:
    options, calls = rows
    task = next(t for t in plan(calls) if t.problem.operator == "rms_norm")
    task = Task(task.problem, task.buckets[:1])
    renamed = put(tmp_path, "renamed", lambda text: text.replace("normalise_", "another_name_"))
    spaces = [Space(task, found, host()) for found in (templates.load("rms_norm"), [renamed])]
    with (RunFolder.create(tmp_path / "runs", "tiny") as folder, Registry.open(tmp_path / "registry.db") as registry,
          Harness(host(), 1) as harness):
        registry.begin_run(folder.id, options.model, host().identity, folder.path)
        measurer = Measurer(folder, registry, harness, host(), Silent(), 60.0)
        for space in spaces:
            measurer.measure(space, space.default(0), space.render(space.default(0)))
        first, second = (data["trial"] for data in folder.of(Event.TRIAL))
    assert first["candidate_hash"] != second["candidate_hash"] and second["template"] == renamed.path
    assert first["artifact_hash"] == second["artifact_hash"] and first["timing"] == second["timing"]


def test_a_point_that_does_not_render_is_a_failure_and_not_the_end(tmp_path: Path, rows, contest: Contest) -> None:
    options, _ = rows
    fragile = put(tmp_path, "fragile", lambda text: text.replace(
        "choices = [1, 2, 4, 8]\ndefault = 4", "choices = [3, 8]\ndefault = 3")
        + "{% if tokens == 8 %}{{ missing }}{% endif %}\n")
    space = Space(contest.task, [fragile], host())
    (tmp_path / "studies").mkdir()
    storage = open_storage(tmp_path / "studies")
    search = TaskSearch(space, storage, [b.workload.key for b in contest.task.buckets], space.defaults)
    search.tell(next(p for p in space.points if dict(p.params)["tokens"] == 8), {})
    contest.lanes.append(Lane(space, search, Proposal("p2", contest.task.problem.key, fragile, "", "", "", 0.0, "me")))
    with RunFolder.create(tmp_path / "runs", "tiny") as folder, Registry.open(tmp_path / "registry.db") as registry:
        folder.write(Event.EMPTY_CALL, {"timing": None, "reason": "not measured here"})
        measurer = Measurer(folder, registry, None, host(), Silent(), 60.0)  # type: ignore[arg-type]
        situation = Proposing(None, options, folder, storage, measurer, host(), Silent()).situation(contest)
    (failed,) = situation.failures
    (trial,) = failed.trials.values()
    assert trial.failure is not None and trial.failure.kind is FailureClass.TEMPLATE
    assert "missing" in trial.failure.reason
    assert situation.outcomes[-1].failure == trial.failure


class Picky(Scripted):
    """Has something for one task only."""

    def ask(self, situation: Situation) -> bool:
        self.asked.append(situation)
        return str(situation) == "b"


def test_who_has_nothing_for_a_task_is_asked_about_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposing, "situation", lambda self, contest: contest)
    picky = Picky(lambda _: [])
    Proposing(picky, *[None] * 6).ask(["a", "b", "c"])  # type: ignore[arg-type, list-item]
    assert picky.asked == ["a", "b"]


def test_limits_on_trials_hold(tmp_path: Path, rows) -> None:
    options, calls = rows
    with RunFolder.create(tmp_path / "runs", "tiny") as folder:
        run(tmp_path, TuneOptions.from_json({**options.to_json(), "max_trials": 4}), calls, Scripted(lambda _: []),
            folder)
        assert len(folder.of(Event.TRIAL)) <= 4 + len({d["bucket"] for d in folder.of(Event.TRIAL)})


def test_a_run_of_another_version_is_refused(rows) -> None:
    options, _ = rows
    with pytest.raises(KforgeError, match="another kforge"):
        TuneOptions.from_json({**options.to_json(), "unheard_of": 1})
