"""Lessons: kept with their evidence, retrieved by relevance, demoted by what is measured later."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from kforge.core.errors import KforgeError
from kforge.core.lesson import Evidence, Finding, Judged, Lesson, Standing, Subject
from kforge.core.trial import Failure, FailureClass, Timing, Trial
from kforge.core.workload import Problem
from kforge.registry.database import MIGRATIONS, Registry
from kforge.registry.lesson_text import MOST_LINES, WIDTH, told
from kforge.registry.relevance import MOST_SHOWN, SAME_MOVE, Asked, by_support, likeness, relevant
from kforge.registry.schema import Base
from kforge.registry.snapshot import KNOWN_SCHEMA, read
from kforge.targets.family import family
from kforge.targets.files import load_target

GAIN, NO_GAIN, FAILED, OPEN = Finding.GAIN, Finding.NO_GAIN, Finding.FAILED, Finding.OPEN
VNNI, AVX2 = "x86_64 avx512_vnni", "x86_64 avx2"
TILE = Subject("linear", "cpp", VNNI, "cache_traffic", "a taller tile of tokens, twelve accumulators in registers")
JUDGED = Judged("M=8", "accepted", "", 0.07, 0.05, 30)


def evidence(finding: Finding, idea: int = 0, run: str = "r1", **other: object) -> Evidence:
    plain = Evidence(run, f"idea-{idea:03d}", "linear(K=576,N=960)", "zen4", finding, 0.1)
    return dataclasses.replace(plain, **other)  # type: ignore[arg-type]


def lesson(*findings: Finding, number: int = 1, at: str = "", **about: str) -> Lesson:
    found = tuple(evidence(finding, n, created=at) for n, finding in enumerate(findings))
    return Lesson(number, dataclasses.replace(TILE, **about), found)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path / "registry.db") as opened:
        for run in ("r1", "r2"):
            opened.begin_run(run, "model", "here", tmp_path)
        yield opened


def test_what_an_idea_came_to_is_read_back_whole(registry: Registry) -> None:
    whole = evidence(GAIN, gain=0.08, buckets=(("M=1", 1.1), ("M=8", 1.02)), judged=(JUDGED,), trials=(3, 1))
    number = registry.learn(TILE, whole)
    (found,) = registry.lessons()
    assert (found.id, found.subject, found.standing) == (number, TILE, Standing.HELD)
    assert dataclasses.replace(found.evidence[0], created="") == whole and found.updated


def test_the_last_word_on_an_idea_counts_and_saying_it_again_changes_nothing(
        registry: Registry, tmp_path: Path) -> None:
    for finding in (FAILED, GAIN, GAIN, NO_GAIN):
        registry.learn(TILE, evidence(finding))
    (found,) = registry.lessons()
    assert [e.finding for e in found.evidence] == [NO_GAIN]
    with sqlite3.connect(tmp_path / "registry.db") as raw:
        assert raw.execute("select count(*) from lesson_event").fetchone() == (3,)


def test_the_same_move_in_other_words_is_the_same_lesson_and_another_target_family_is_not(registry: Registry) -> None:
    again = dataclasses.replace(TILE, move="A taller tile of tokens: twelve accumulators, in registers.")
    other = dataclasses.replace(TILE, move="prefetch the next panel")
    first = registry.learn(TILE, evidence(GAIN, 0))
    assert registry.learn(again, evidence(GAIN, 1)) == first
    assert registry.learn(other, evidence(GAIN, 2)) != first
    assert registry.learn(dataclasses.replace(TILE, family=AVX2), evidence(GAIN, 3)) != first
    assert [len(found.evidence) for found in registry.lessons()] == [2, 1, 1]


def test_an_outcome_of_another_run_that_says_the_opposite_demotes_and_more_of_them_turn_it_round(
        registry: Registry) -> None:
    registry.learn(TILE, evidence(GAIN))
    registry.learn(TILE, evidence(NO_GAIN, run="r2"))
    (found,) = registry.lessons()
    assert (found.claim, found.supports, found.contradictions, found.standing) == (GAIN, 1, 1, Standing.DEMOTED)
    registry.learn(TILE, evidence(NO_GAIN, 1, run="r2"))
    (found,) = registry.lessons()
    assert (found.claim, found.supports, found.contradictions, found.standing) == (NO_GAIN, 2, 1, Standing.HELD)


def test_a_lesson_that_was_removed_is_told_nothing_more_and_a_later_run_begins_another(registry: Registry) -> None:
    number = registry.learn(TILE, evidence(GAIN))
    registry.remove_lesson(number, "a mistake")
    registry.learn(TILE, evidence(NO_GAIN))
    later = registry.learn(TILE, evidence(GAIN, run="r2"))
    assert later != number
    assert [(x.id, x.standing, x.claim) for x in registry.lessons()] == [
        (number, Standing.REMOVED, GAIN), (later, Standing.HELD, GAIN)]
    for missing in (number, 99):
        with pytest.raises(KforgeError, match=f"no lesson {missing} in"):
            registry.remove_lesson(missing, "")


def test_trials_of_a_template_are_numbered_the_fastest_first(registry: Registry) -> None:
    problem = Problem.of("rms_norm", H=64, residual=0)
    for n, seconds in enumerate((3e-5, 1e-5, 2e-5)):
        registry.record_trial("r1", "here", problem, Trial(f"c{n}", "w", (), "mine", timing=Timing(seconds, 0, 5, 9)))
    failed = Failure(FailureClass.CRASH, "SIGSEGV")
    registry.record_trial("r1", "here", problem, Trial("c3", "w", (), "mine", failure=failed))
    registry.record_trial("r1", "here", problem, Trial("c4", "w", (), "other", timing=Timing(1e-6, 0, 5, 9)))
    assert registry.trial_numbers("r1", "mine") == (2, 3, 1, 4)
    assert registry.trial_numbers("r1", "mine", limit=1) == (2,)


def test_a_registry_of_the_schema_before_is_brought_up_to_date_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    with sqlite3.connect(path) as raw:
        raw.execute("insert into run values ('old', 'model', 'here', '/runs', '2026')")
        raw.execute("insert into trial (run, target_identity, problem, workload, candidate_hash, template, params, "
                    "reason, created) values ('old', 'here', 'p', 'w', 'c', 't', '{}', '', '2026')")
        assert raw.execute("select name from sqlite_master where name like 'lesson%'").fetchall() == []
    assert read(path).kernels == ()  # what only looks something up needs no newer schema
    with Registry.open(path) as opened:
        assert opened.trial_count("old") == 1 and opened.lessons() == []
        opened.learn(TILE, evidence(GAIN, run="old"))
        assert len(opened.lessons()) == 1
    with sqlite3.connect(path) as raw:
        assert raw.execute("select version_num from alembic_version").fetchone() == (KNOWN_SCHEMA,)


def test_the_migrations_make_the_tables_that_the_code_knows(registry: Registry, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'registry.db'}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


@pytest.mark.parametrize(
    ("findings", "claim", "supports", "contradictions", "standing"),
    [
        ((GAIN,), GAIN, 1, 0, Standing.HELD),
        ((NO_GAIN,), NO_GAIN, 1, 0, Standing.HELD),
        ((GAIN, NO_GAIN), GAIN, 1, 1, Standing.DEMOTED),
        ((NO_GAIN, GAIN), NO_GAIN, 1, 1, Standing.DEMOTED),
        ((GAIN, NO_GAIN, GAIN), GAIN, 2, 1, Standing.HELD),
        ((GAIN, OPEN, FAILED), GAIN, 1, 0, Standing.HELD),
        ((FAILED, FAILED), FAILED, 2, 0, Standing.HELD),
        ((FAILED, NO_GAIN), NO_GAIN, 1, 0, Standing.HELD),
        ((OPEN,), OPEN, 0, 0, Standing.OPEN),
        ((), OPEN, 0, 0, Standing.OPEN),
    ],
)
def test_what_most_outcomes_that_ran_came_to_is_what_a_lesson_says(findings, claim, supports, contradictions, standing):
    found = lesson(*findings)
    assert (found.claim, found.supports, found.contradictions, found.standing) == (
        claim, supports, contradictions, standing)
    assert dataclasses.replace(found, removed=True).standing is Standing.REMOVED


ASKED = Asked("linear", "cpp", VNNI, frozenset({"cache_traffic"}))


def test_the_nearest_kin_come_first_and_strangers_not_at_all() -> None:
    here = lesson(GAIN, number=1)
    elsewhere = lesson(GAIN, GAIN, GAIN, number=2, family=AVX2)
    gpu = lesson(GAIN, GAIN, number=3, backend="cuda", family="sm_90")
    norm = lesson(GAIN, GAIN, number=4, operator="rms_norm", family=AVX2)
    norm_here = lesson(GAIN, number=5, operator="rms_norm")
    stranger = lesson(GAIN, number=6, operator="rms_norm", bottleneck="edges")
    found = relevant([stranger, norm, gpu, norm_here, elsewhere, here], ASKED, most=9)
    assert [x.id for x in found] == [1, 2, 3, 5, 4]


def test_of_equal_kin_the_best_supported_comes_first_then_what_was_judged_then_the_newest() -> None:
    old, new = lesson(GAIN, number=1, at="2026-01-01"), lesson(GAIN, number=2, at="2026-02-01")
    twice = lesson(GAIN, GAIN, number=3, at="2025-01-01")
    paired = Lesson(4, TILE, (evidence(NO_GAIN, judged=(JUDGED,), created="2025-01-01"),))
    assert [x.id for x in relevant([old, new, twice, paired], ASKED)] == [3, 4, 2, 1]


def test_what_is_demoted_open_or_removed_is_in_no_prompt_and_yet_listed() -> None:
    held, demoted, undecided = lesson(GAIN, number=1), lesson(GAIN, NO_GAIN, number=2), lesson(OPEN, number=3)
    gone = dataclasses.replace(lesson(GAIN, number=4), removed=True)
    everything = [gone, undecided, demoted, held]
    assert [x.id for x in relevant(everything, ASKED)] == [1]
    assert [x.id for x in by_support(everything)] == [1, 2, 3, 4]


def test_a_prompt_gets_a_few_of_them() -> None:
    assert len(relevant([lesson(GAIN, number=n) for n in range(50)], ASKED)) == MOST_SHOWN


@pytest.mark.parametrize(("one", "other", "same"), [
    ("raise the prefetch distance to 4096", "Raise the prefetch distance to 4096!", True),
    ("raise the prefetch distance to 4096", "lower the prefetch distance to 512", False),
    ("", "", True),
    ("", "x", False),
])
def test_moves_are_the_same_by_their_words(one: str, other: str, same: bool) -> None:
    assert (likeness(one, other) >= SAME_MOVE) is same


def test_a_lesson_is_told_with_what_was_tried_what_it_gave_and_on_what_evidence() -> None:
    whole = evidence(GAIN, 3, gain=0.081, buckets=(("M=1", 1.12),), judged=(JUDGED,), trials=(12, 17))
    against = evidence(NO_GAIN, 4, run="r2", judged=(dataclasses.replace(
        JUDGED, decision="rejected", reason="slower", gain=-0.02),))
    text = told(Lesson(1, TILE, (whole, against)))
    for needed in ("linear on x86_64 avx512_vnni (cpp), against cache_traffic: it gained (1 for it, 1 against it)",
                   "Move: a taller tile", "[run r1, idea-003, trials 12, 17]", "predicted +10.0 %",
                   "search +8.1 % over the best before (M=1 1.12x)",
                   "judged accepted at M=8: +7.0 % over the incumbent, at least +5.0 %, 30 pairs",
                   "judged rejected (slower) at M=8: -2.0 %"):
        assert needed in " ".join(text.split()), text
    assert text.index("r2, idea-004") < text.index("r1, idea-003")  # the newest first


def test_however_much_there_is_to_say_a_lesson_has_twenty_lines() -> None:
    long = dataclasses.replace(TILE, move="unroll " * 500 + "x" * 500, family="y" * 300)
    many = tuple(evidence(GAIN, n, judged=(JUDGED,) * 9, buckets=(("M=1", 1.0),) * 30, gain=0.1) for n in range(20))
    lines = told(Lesson(1, long, many)).splitlines()
    assert len(lines) == MOST_LINES and max(map(len, lines)) <= WIDTH
    assert lines[-1] == "(16 earlier outcomes)"


def test_the_same_evidence_is_told_in_the_same_words_whenever_it_was_heard_of() -> None:
    assert told(lesson(GAIN, at="2026-01-01")) == told(lesson(GAIN, at="2027-01-01"))


@pytest.mark.parametrize(("name", "kind"), [
    ("zen4", VNNI), ("sapphire-rapids", VNNI), ("x86-64-v3", AVX2), ("neoverse-v2", "aarch64 sve2"),
    ("apple-m4", "aarch64 i8mm"),
])
def test_targets_of_a_family_share_what_kernels_are_written_around(name: str, kind: str) -> None:
    assert family(load_target(name)) == kind


def test_a_target_of_which_nothing_is_listed_is_of_the_family_of_its_architecture() -> None:
    gpu = dataclasses.replace(load_target("zen4"), kind="gpu", arch="sm_90", features=())
    assert family(gpu) == "sm_90"
