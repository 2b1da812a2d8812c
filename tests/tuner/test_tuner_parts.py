"""The parts of a run that need no clock: journal, plan, space, search, location, and the registry as if promoted."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelState
from kforge.core.trial import Failure, FailureClass, Timing, Trial
from kforge.core.workload import Phase, Problem, Workload, attrs
from kforge.models.graph import CallKind
from kforge.models.workloads import Mode, WorkloadRow
from kforge.registry.snapshot import Snapshot
from kforge.tuner.contest import best_rows
from kforge.tuner.finals import bucket_shapes
from kforge.tuner.journal import Event, RunFolder, trial_from_json, trial_to_json
from kforge.tuner.location import locate
from kforge.tuner.options import TuneOptions
from kforge.tuner.plan import plan, shares
from kforge.tuner.points import Point, Space
from kforge.tuner.promotion import as_if_promoted
from kforge.tuner.search import TaskSearch, open_storage
from tests.registry.test_registry import record

LINEAR = Problem.of("linear", K=256, N=512, weight="q4_0", act="a8", epilogue="none", bias=0, rows=32)
NORM = Problem.of("rms_norm", H=256, residual=0)


def bucket_of(problem, axes):
    axis = "M" if problem.operator == "linear" else "T"
    return {axis: next(m for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if m >= axes[axis])}


def rows():
    decode, prefill = Mode(Phase.DECODE, 1, 1, 64), Mode(Phase.PREFILL, 1, 64, 64)
    return [
        WorkloadRow(decode, CallKind.QKV, Workload.of(LINEAR, 2.0, Phase.DECODE, M=1)),
        WorkloadRow(decode, CallKind.ATTN_NORM, Workload.of(NORM, 5.0, Phase.DECODE, T=1)),
        WorkloadRow(prefill, CallKind.QKV, Workload.of(LINEAR, 2.0, Phase.PREFILL, M=60)),
    ]


def test_a_line_torn_by_a_kill_is_dropped_and_the_rest_kept(tmp_path):
    with RunFolder.create(tmp_path, "model") as folder:
        folder.write(Event.STARTED, {"options": TuneOptions("m").to_json()})
        folder.write(Event.LAYOUT, {"rows": 32})
    with open(folder.path / "journal.jsonl", "a") as out:
        out.write('{"kind": "trial", "at": 3, "da')
    with RunFolder.resume(folder.path) as resumed:
        assert [line.kind for line in resumed.lines] == [Event.STARTED, Event.LAYOUT]
        resumed.write(Event.FINISHED, {})
    assert [line.kind for line in RunFolder.lines_of(folder.path)] == [Event.STARTED, Event.LAYOUT, Event.FINISHED]


def test_used_time_goes_on_after_a_resume(tmp_path):
    with RunFolder.create(tmp_path, "model") as folder:
        folder.write(Event.STARTED, {})
        folder.lines[-1] = dataclasses.replace(folder.lines[-1], at=0.0)
    text = (folder.path / "journal.jsonl").read_text()
    (folder.path / "journal.jsonl").write_text(text.replace(text.split('"at": ')[1].split(",")[0], "120.0"))
    with RunFolder.resume(folder.path) as resumed:
        assert 120.0 <= resumed.used_seconds < 121.0


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(KforgeError, match=r"not a run folder.*journal\.jsonl"):
        RunFolder.resume(tmp_path)


def test_options_and_trials_survive_the_journal():
    options = TuneOptions("m", batches=(1, 4), only="linear")
    assert TuneOptions.from_json(options.to_json()) == options
    for trial in (
        Trial("c", "w", attrs({"b": 1, "a": "x"}), "t", timing=Timing(1e-5, 0.1, 5, 10)),
        Trial("c", "w", (), "t", failure=Failure(FailureClass.CRASH, "SIGSEGV", "detail")),
    ):
        assert trial_from_json(trial_to_json(trial)) == trial


def test_calls_of_all_modes_meet_in_one_task_with_a_bucket_each():
    tasks = plan(rows(), bucket_of)
    assert [t.problem.operator for t in tasks] == ["linear", "rms_norm"]
    linear = tasks[0]
    assert "rows" not in dict(linear.problem.static) and linear.at(64)["rows"] == 64
    assert [b.workload.axes["M"] for b in linear.buckets] == [1, 64]


def test_shares_weigh_by_calls_and_time_and_add_up_to_one():
    tasks = plan(rows(), bucket_of)
    keys = [b.workload.key for t in tasks for b in t.buckets]
    share = shares(tasks, dict(zip(keys, (10e-6, 1e-3, 4e-6), strict=True)))
    assert math.isclose(sum(share.values()), 1.0)
    assert math.isclose(share[keys[0]], 0.5 * 20 / 40)  # half of the decode step, which is one of two modes
    assert math.isclose(share[keys[1]], 0.5)


@pytest.fixture(scope="module")
def space():
    from kforge.backends import templates
    from kforge.targets.files import load_target

    return Space(plan(rows(), bucket_of)[0], templates.load("linear"), load_target("zen4"))


def test_every_point_of_a_space_is_legal_and_renders(space):
    assert set(space.defaults) <= set(space.points)
    for point in random.Random(0).sample(space.points, 5):
        assert space.render(point).params == point.params


def test_the_default_is_the_template_that_asks_most_of_the_target(space):
    assert "vnni" in space.default(32).template


def test_wider_vectors_are_predicted_to_take_less_time_where_arithmetic_decides(space):
    by_width = {p.template.rsplit("/", 1)[-1]: space.predicted(p, threads=2) for p in space.defaults if p.rows == 32}
    assert by_width["a8_vnni.cc.j2"] < by_width["a8_avx2.cc.j2"] < by_width["portable.cc.j2"]


def test_nothing_is_proposed_twice_and_seeds_come_first(space, tmp_path):
    seeds = [space.default(16), Point("gone.cc.j2", 32, ())]
    search = TaskSearch(space, open_storage(tmp_path), ["a", "b"], seeds)
    seen: list[Point] = []
    for _ in range(6):
        for point in search.propose(4):
            seen.append(point)
            search.tell(point, {"a": 1e-5 * (1 + len(seen)), "b": 2e-5})
    assert seen[0] == space.default(16)
    assert len(set(seen)) == len(seen) == 24 and set(seen) <= set(space.points)


def test_the_search_finds_the_good_corner_of_a_space_sooner_than_chance(space, tmp_path):
    """The planted optimum is one layout and one template's parameter; chance finds it in 1 of ~6 points."""

    def cost(point: Point) -> float:
        params = dict(point.params)
        return 1e-5 * (1 + (point.rows != 32) + 2 * ("vnni" not in point.template) + (params.get("m_tile") != 12))

    search = TaskSearch(space, open_storage(tmp_path), ["a"], [], seed=1)
    for _ in range(15):
        for point in search.propose(4):
            search.tell(point, {"a": cost(point)})
    last = list(search.measured.values())[-20:]
    assert min(s["a"] for s in search.measured.values()) == pytest.approx(1e-5)
    assert sum(s["a"] for s in last) / 20 < sum(map(cost, space.points)) / len(space.points)


def test_a_resumed_study_is_not_told_the_same_point_again(space, tmp_path):
    point = space.default(32)
    for _ in range(2):
        search = TaskSearch(space, open_storage(tmp_path), ["a"], [])
        search.tell(point, {"a": 1e-5})
    import optuna

    names = optuna.get_all_study_names(open_storage(tmp_path))
    trials = optuna.load_study(study_name=names[0], storage=open_storage(tmp_path)).trials
    assert [t.value for t in trials] == [math.log(1e-5)]


def test_a_resumed_search_knows_what_its_study_holds_before_it_is_told_again(space, tmp_path):
    """A strategy that was told the same proposes the same."""
    told = space.points[::7][:30]

    def search(folder):
        folder.mkdir(exist_ok=True)
        return TaskSearch(space, open_storage(folder), ["a"], [], seed=3)

    first = search(tmp_path / "first")
    for n, point in enumerate(told):
        first.tell(point, {"a": 1e-5 * (1 + n % 5)} if n % 9 else {})
    resumed = search(tmp_path / "first")
    known = resumed._strategies["a"]
    assert (len(known._seconds), len(known._failed)) == (26, 4)
    for n, point in enumerate(told):
        resumed.tell(point, {"a": 1e-5 * (1 + n % 5)} if n % 9 else {})
    assert not set(resumed.propose(3)) & set(told)


@pytest.mark.parametrize("strategy", ["tpe", "random"])
def test_other_strategies_take_the_same_place(space, tmp_path, strategy):
    search = TaskSearch(space, open_storage(tmp_path), ["a", "b"], [space.default(16)], strategy=strategy)
    seen = []
    for _ in range(4):
        for point in search.propose(4):
            seen.append(point)
            search.tell(point, {"a": 1e-5 * (1 + len(seen)), "b": 2e-5})
    assert len(set(seen)) == len(seen) == 16


def test_the_layout_is_chosen_over_all_buckets_together(space, tmp_path):
    search = TaskSearch(space, open_storage(tmp_path), ["a", "b"], [])
    search.tell(space.default(16), {"a": 1e-5, "b": 9e-5})
    search.tell(space.default(32), {"a": 2e-5, "b": 2e-5})
    assert best_rows(search.measured, {"a": 1.0, "b": 1.0}, default=16) == 32
    assert best_rows(search.measured, {"a": 1.0, "b": 0.0}, default=32) == 16


def test_another_layout_needs_more_than_noise(space, tmp_path):
    search = TaskSearch(space, open_storage(tmp_path), ["a"], [])
    search.tell(space.default(16), {"a": 0.99e-5})
    search.tell(space.default(32), {"a": 1.00e-5})
    assert best_rows(search.measured, {"a": 1.0}, default=32) == 32


def test_a_template_far_behind_in_every_bucket_gets_no_more_time(space, tmp_path):
    search = TaskSearch(space, open_storage(tmp_path), ["a", "b"], [])
    slow = next(p for p in space.points if "portable" in p.template)
    search.tell(space.default(32), {"a": 1e-5, "b": 1e-5})
    search.tell(slow, {"a": 9e-5, "b": 9e-5})
    for _ in range(10):
        assert all(p.template != slow.template for p in search.propose(4))


def test_a_bucket_is_judged_at_its_smallest_member_too():
    shapes = bucket_shapes(Workload.of(LINEAR, M=8))
    assert [w.axes["M"] for w in shapes] == [8, 5]
    assert len(bucket_shapes(Workload.of(LINEAR, M=1))) == 1


def test_location_covers_the_truth_and_shrugs_off_outliers():
    noise = random.Random(5)
    covered = 0
    for _ in range(200):
        ratios = [1.03 * math.exp(noise.gauss(0, 0.02)) * (3.0 if noise.random() < 0.05 else 1.0) for _ in range(16)]
        found = locate(ratios)
        covered += found.lower <= 0.03 <= found.upper
        assert found.lower <= found.gain <= found.upper
    assert covered >= 180  # nominal 95 %, with one-sided contamination


def test_as_if_promoted_replaces_what_serves_and_keeps_the_rest():
    old, other = record(1), record(8)
    new = record(1, candidate_hash="new", state=KernelState.ACCEPTED, id=99)
    view = as_if_promoted(Snapshot.of([old, other, new]), [new])
    assert [k.candidate_hash for k in view.served(new.problem)] == [other.candidate_hash, "new"]
