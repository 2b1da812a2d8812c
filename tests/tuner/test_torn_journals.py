"""Journals that a kill, a full disk or somebody's editor left incomplete: a run goes on with all that can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kforge.core.workload import Problem, Workload
from kforge.targets.files import load_target
from kforge.tuner.journal import Event, RunFolder
from kforge.tuner.plan import Bucket, Task
from kforge.tuner.points import Space
from kforge.tuner.search import TaskSearch, open_storage


@pytest.fixture(scope="module")
def space() -> Space:
    from kforge.backends import templates

    problem = Problem.of("argmax", V=1024)
    return Space(Task(problem, (Bucket(Workload.of(problem, R=1), ()),)), templates.load("argmax"), load_target("zen4"))


def test_a_damaged_line_in_the_middle_costs_no_other_line(tmp_path):
    folder = RunFolder.create(tmp_path, "m")
    with folder:
        for kind in (Event.STARTED, Event.TASK, Event.LAYOUT, Event.FINISHED):
            folder.write(kind, {"x": kind.value})
    journal = folder.path / "journal.jsonl"
    text = journal.read_bytes().replace(b'"task", "at"', b'"task", \x00\xff')
    journal.write_bytes(text)
    with RunFolder.resume(folder.path) as again:
        assert [line.kind for line in again.lines] == [Event.STARTED, Event.LAYOUT, Event.FINISHED]
        assert again.damaged == 1
    assert journal.read_bytes() == text  # nothing of it is thrown away


@pytest.mark.parametrize("kept", [0, 5, 60, 100])
def test_what_somebody_cuts_from_a_journal_while_its_run_goes_on_is_written_again(tmp_path, kept):
    folder = RunFolder.create(tmp_path, "m")
    journal = folder.path / "journal.jsonl"
    with folder:
        folder.write(Event.STARTED, {})
        folder.write(Event.TASK, {"task": "a"})
        os.truncate(journal, min(kept, journal.stat().st_size - 9))
        folder.write(Event.TASK, {"task": "b"})
        os.truncate(journal, kept)  # nothing more is written: its end is put back when the run is closed
    with RunFolder.resume(folder.path) as again:
        assert [line.data for line in again.lines] == [{}, {"task": "a"}, {"task": "b"}]
        assert again.damaged == 0


def test_a_line_written_after_somebody_edited_the_journal_stands_by_itself(tmp_path):
    folder = RunFolder.create(tmp_path, "m")
    journal = folder.path / "journal.jsonl"
    with folder:
        folder.write(Event.STARTED, {})
        folder.write(Event.TASK, {"task": "a"})
        journal.write_bytes(journal.read_bytes().replace(b'"a"', b'"b')[:-1])
        folder.write(Event.TASK, {"task": "c"})
        folder.write(Event.TASK, {"task": "d"})
    with RunFolder.resume(folder.path) as again:
        assert again.of(Event.TASK) == [{"task": "c"}, {"task": "d"}]
        assert again.damaged == 1


@pytest.mark.parametrize("kept", range(0, 1001, 50))
def test_a_study_cut_off_anywhere_goes_on_and_is_told_again_what_it_lost(space, tmp_path, kept):
    bucket = space.task.buckets[0].workload.key
    study = tmp_path / "study.journal"

    def search() -> TaskSearch:
        return TaskSearch(space, open_storage(tmp_path), [bucket], [])

    points = space.points[:3]
    first = search()
    for n, point in enumerate(points):
        first.propose(1)
        first.tell(point, {bucket: 1e-6 * (n + 1)})
    text = study.read_bytes()
    study.write_bytes(text[: len(text) * kept // 1000])
    for _ in range(2):  # the second time from what the first one wrote
        again = search()
        for n, point in enumerate(points):
            again.tell(point, {bucket: 1e-6 * (n + 1)})
        assert again.propose(1)
    told = [t for s in again._studies.values() for t in s.get_trials() if "kforge_point" in t.user_attrs]
    assert len(told) == len(points)
    assert [p.name for p in tmp_path.iterdir()] == ["study.journal"]  # no lock that a kill would leave


def test_a_study_that_is_cut_while_it_goes_on_disturbs_nobody(space, tmp_path):
    bucket = space.task.buckets[0].workload.key
    search = TaskSearch(space, open_storage(tmp_path), [bucket], [])
    search.tell(space.points[0], {bucket: 1e-6})
    os.truncate(tmp_path / "study.journal", 0)
    search.tell(space.points[1], {bucket: 2e-6})
    assert search.propose(1)
    again = TaskSearch(space, open_storage(tmp_path), [bucket], [])  # its file now begins in the middle
    again.tell(space.points[0], {bucket: 1e-6})
    assert again.propose(1)


def test_a_run_that_measured_nothing_goes_and_one_that_cost_money_stays(tmp_path: Path) -> None:
    empty = RunFolder.create(tmp_path, "m")
    empty.discard()
    assert not empty.path.exists()
    paid = RunFolder.create(tmp_path, "m")
    paid.write(Event.STARTED, {})
    (paid.path / "spending.jsonl").write_text("{}\n")
    paid.discard()
    assert (paid.path / "spending.jsonl").exists() and (paid.path / "journal.jsonl").exists()
