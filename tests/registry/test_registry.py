"""The registry keeps what it is told, serves only what is sound, and explains each answer."""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
import time

import pytest

from kforge.core.errors import KforgeError
from kforge.core.kernel import KernelRecord, KernelState, Settled, Tier
from kforge.core.layout import Layout
from kforge.core.trial import Failure, FailureClass, NumericsClass, Timing, Trial
from kforge.core.workload import Problem
from kforge.registry import database, snapshot
from kforge.registry.database import Registry, Tried
from kforge.registry.lookup import Asker, lookup
from kforge.registry.maintenance import collect, verify
from kforge.registry.snapshot import Snapshot, read
from kforge.registry.trials import recorded
from kforge.registry.validators import Toolchain

PROBLEM = Problem.of("linear", K=576, N=960, weight="q4_1", act="a8", epilogue="none", bias=0, rows=32)
TOOLCHAIN = Toolchain(abi_version=1, operator_versions=(("linear", 1),), compilers=("g++ 12.2.0",))
ASKER = Asker("here", TOOLCHAIN, siblings=("cousin",))


def bucket(_problem, dynamic):
    return {"M": next(m for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if m >= min(dynamic["M"], 512))}


def record(
    m: int = 1, *, target: str = "here", artifact: bytes = b"code", source: str = "src", **changes
) -> KernelRecord:
    base = KernelRecord(
        candidate_hash=f"c{m}{target}",
        problem=PROBLEM,
        bucket=(("M", m),),
        target_identity=target,
        target_name=target,
        operator_version=1,
        abi_version=1,
        numerics=NumericsClass.EXACT,
        layouts=(("w", Layout.of("panel", rows=32, gate_up=0)),),
        backend="cpp",
        template="cpp/linear/a8.cc.j2",
        template_hash="t",
        params=(("m_tile", 4),),
        source_hash=hashlib.sha256(source.encode()).hexdigest(),
        artifact_hash=hashlib.sha256(artifact).hexdigest(),
        compiler="g++ 12.2.0",
        seconds=1e-5,
        default_seconds=2e-5,
        gain=1.0,
        gain_lower=0.9,
        run="r1",
        state=KernelState.PROMOTED,
        id=m,
    )
    return dataclasses.replace(base, **changes)


@pytest.fixture
def registry(tmp_path):
    with Registry.open(tmp_path / "registry.db") as opened:
        opened.begin_run("r1", "model", "here", tmp_path)
        yield opened


def test_an_accepted_kernel_is_read_back_whole_and_served_only_after_promotion(registry, tmp_path):
    kernel = record()
    number = registry.accept(kernel, b"code", "src", {"pairs": 30})
    stored = read(tmp_path / "registry.db")
    created = stored.kernels[0].created
    assert stored.kernels == (dataclasses.replace(kernel, state=KernelState.ACCEPTED, id=number, created=created),)
    assert stored.served(PROBLEM) == ()
    registry.set_state(number, KernelState.PROMOTED, "engine not slower")
    assert [k.candidate_hash for k in read(tmp_path / "registry.db").served(PROBLEM)] == [kernel.candidate_hash]


def test_a_look_up_mentions_what_was_accepted_and_not_promoted_in_any_layout():
    other = Problem.of(**{"operator": "linear", **dict(PROBLEM.static), "rows": 64})
    waiting = record(2, state=KernelState.ACCEPTED, problem=other, id=7)
    elsewhere = record(2, state=KernelState.ACCEPTED, target="there", id=8)
    another = record(2, state=KernelState.ACCEPTED, problem=Problem.of("rms_norm", H=576, residual=0), id=9)
    answer = lookup(Snapshot.of([waiting, elsewhere, another]), PROBLEM, {"M": 2}, ASKER, bucket)
    assert answer.kernel is None
    reasons = [step.reason for step in answer.trace]
    assert reasons == [
        "no promoted kernel of this problem on any target",
        "accepted by the judge, not promoted, so it does not serve; why: kforge kernels show 7",
        "nothing measured is near enough: the default serves",
    ]


def test_promoting_a_better_kernel_retires_the_one_before(registry, tmp_path):
    first = registry.accept(record(), b"code", "src", {})
    second = registry.accept(record(candidate_hash="better"), b"code", "src", {})
    registry.set_state(first, KernelState.PROMOTED, "")
    registry.set_state(second, KernelState.PROMOTED, "")
    assert [k.candidate_hash for k in read(tmp_path / "registry.db").served(PROBLEM)] == ["better"]


def test_recording_the_same_trial_twice_counts_once(registry):
    trial = Trial("c", "w", (("a", 1),), "t", timing=Timing(1e-5, 0.01, 5, 10))
    failed = Trial("d", "w", (), "t", failure=Failure(FailureClass.CRASH, "SIGSEGV"))
    for each in (trial, failed, trial):
        registry.record_trial("r1", "here", PROBLEM, each)
    assert registry.trial_count("r1") == 2
    assert registry.tried(PROBLEM, "here") == [Tried("t", (("a", 1),))]


def test_a_kernel_whose_bytes_do_not_match_its_hash_is_refused(registry):
    with pytest.raises(KforgeError, match="do not have the hashes"):
        registry.accept(record(), b"other", "src", {})


def test_verify_quarantines_a_corrupted_artifact(registry, tmp_path):
    number = registry.accept(record(), b"code", "src", {})
    registry.set_state(number, KernelState.PROMOTED, "")
    registry.store.path(record().artifact_hash).write_bytes(b"evil")
    assert not verify(registry, read(tmp_path / "registry.db")).sound
    assert read(tmp_path / "registry.db").served(PROBLEM) == ()
    with pytest.raises(KforgeError, match="does not have the hash"):
        registry.store.get(record().artifact_hash)


def test_collect_removes_only_what_no_living_kernel_names(registry, tmp_path):
    registry.accept(record(), b"code", "src", {})
    registry.store.put(b"orphan")
    assert collect(registry).files == 1
    assert verify(registry, read(tmp_path / "registry.db")).sound


def test_a_kernel_that_is_not_in_use_any_more_needs_no_files(registry, tmp_path):
    number = registry.accept(record(), b"code", "src", {})
    registry.set_state(number, KernelState.RETIRED, "by hand")
    assert collect(registry).files == 2
    assert verify(registry, read(tmp_path / "registry.db")).sound


def test_files_are_not_collected_while_a_tune_measures(registry):
    """It stores a kernel's files before the entry that names them."""
    registry.store.put(b"about to be accepted")
    with registry.tuning_lock(), pytest.raises(KforgeError, match=r"another tune \(process \d+\) is using"):
        collect(registry)
    assert len(registry.store.digests()) == 1


def test_a_registry_whose_maker_was_killed_before_its_tables_is_empty_and_is_made_then(tmp_path):
    path = tmp_path / "registry.db"
    raw = sqlite3.connect(path)
    raw.execute("pragma journal_mode=wal")
    raw.close()
    assert path.stat().st_size > 0
    assert read(path).kernels == ()
    with Registry.open(path) as opened:
        assert opened.snapshot().kernels == ()


def test_a_migration_that_is_cut_off_leaves_no_tables(tmp_path, monkeypatch):
    path = tmp_path / "registry.db"
    upgrade = database.command.upgrade

    def cut_off(*words):
        upgrade(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(database.command, "upgrade", cut_off)
    with pytest.raises(KeyboardInterrupt):
        Registry.open(path)
    monkeypatch.undo()
    with sqlite3.connect(path) as raw:
        assert raw.execute("select name from sqlite_master").fetchall() == []
    with Registry.open(path) as opened:
        assert opened.snapshot().kernels == ()


def test_a_registry_that_is_held_for_too_long_is_said_to_be(tmp_path, monkeypatch):
    path = tmp_path / "registry.db"
    Registry.open(path).close()
    monkeypatch.setattr(database, "PATIENCE", 0.1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin immediate")
    with Registry.open(path) as opened, pytest.raises(KforgeError, match=r"locked.*wait for the process"):
        opened.begin_run("r", "m", "t", tmp_path)
    holder.close()


def test_a_registry_that_nobody_may_read_now_is_not_to_be_moved_away(tmp_path, monkeypatch):
    path = tmp_path / "registry.db"
    Registry.open(path).close()
    monkeypatch.setattr(snapshot, "PATIENCE", 0.1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("pragma locking_mode=exclusive")
    holder.execute("begin exclusive")
    holder.execute("create table held (id)")
    with pytest.raises(KforgeError, match=r"locked; wait for the process"):
        read(path)
    holder.close()


def test_a_registry_that_was_moved_away_is_not_taken_for_an_empty_one(registry, tmp_path):
    (tmp_path / "registry.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(KforgeError, match="is gone although it was open"):
        registry.snapshot()


def test_a_database_from_a_newer_version_is_left_alone(registry, tmp_path):
    registry.close()
    with sqlite3.connect(tmp_path / "registry.db") as raw:
        raw.execute("update alembic_version set version_num='9999'")
    for opening in (lambda: Registry.open(tmp_path / "registry.db"), lambda: read(tmp_path / "registry.db")):
        with pytest.raises(KforgeError, match="newer kforge"):
            opening()


def test_a_file_that_is_no_database_gets_one_sentence(tmp_path):
    (tmp_path / "registry.db").write_bytes(b"not a database at all" * 100)
    for opening in (lambda: Registry.open(tmp_path / "registry.db"), lambda: read(tmp_path / "registry.db")):
        with pytest.raises(KforgeError, match="move it away or restore it"):
            opening()


def test_a_second_tune_is_turned_away_while_one_measures(registry, tmp_path):
    with (
        registry.tuning_lock(),
        Registry.open(tmp_path / "registry.db") as other,
        pytest.raises(KforgeError, match="another tune"),
        other.tuning_lock(),
    ):
        pass


def test_the_schema_the_fast_path_knows_is_the_newest_migration():
    from alembic.script import ScriptDirectory

    from kforge.registry import database, snapshot

    assert ScriptDirectory(str(database.MIGRATIONS)).get_current_head() == snapshot.KNOWN_SCHEMA


def test_what_was_settled_last_wins(registry, tmp_path):
    weight = Problem.of("linear", K=576)
    for rows in (16, 64):
        registry.settle("r1", "here", Settled(weight.key, rows, ("M=1",), "t"))
    assert read(tmp_path / "registry.db").settled(weight, "here") == Settled(weight.key, 64, ("M=1",), "t")


@pytest.mark.parametrize(
    ("m", "tier", "served"),
    [(1, Tier.EXACT, 1), (8, Tier.EXACT, 8), (3, Tier.ABOVE, 8), (30, Tier.NEAREST, 8), (512, Tier.DEFAULT, None)],
)
def test_lookup_walks_its_tiers_in_order(m, tier, served):
    snapshot = Snapshot.of([record(1), record(8)])
    answer = lookup(snapshot, PROBLEM, {"M": m}, ASKER, bucket)
    assert answer.tier is tier
    assert (dict(answer.kernel.bucket)["M"] if answer.kernel else None) == served
    assert answer.trace[-1].taken and answer.trace[-1].reason


def test_a_sibling_target_serves_only_as_an_estimate_and_a_stranger_never():
    assert lookup(Snapshot.of([record(1, target="cousin")]), PROBLEM, {"M": 1}, ASKER, bucket).tier is Tier.SIBLING
    answer = lookup(Snapshot.of([record(1, target="stranger")]), PROBLEM, {"M": 1}, ASKER, bucket)
    assert answer.tier is Tier.DEFAULT
    assert any("another architecture" in step.reason for step in answer.trace)


def test_another_abi_is_never_served_and_another_compiler_is_flagged():
    refused = lookup(Snapshot.of([record(1, abi_version=2)]), PROBLEM, {"M": 1}, ASKER, bucket)
    assert refused.tier is Tier.DEFAULT and any("abi_version" in s.reason for s in refused.trace)
    stale = lookup(Snapshot.of([record(1, compiler="g++ 11.0.0")]), PROBLEM, {"M": 1}, ASKER, bucket)
    assert stale.tier is Tier.EXACT and stale.stale and not stale.promised


def test_lookup_in_process_answers_in_under_20_microseconds():
    snapshot = Snapshot.of([record(m) for m in (1, 2, 4, 8, 16, 32)])
    best = min(_timed(lambda: lookup(snapshot, PROBLEM, {"M": 8}, ASKER, bucket)) for _ in range(200))
    assert best < 20e-6


def _timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_reading_trials_writes_nothing(tmp_path):
    with pytest.raises(KforgeError, match="cannot be read"):
        recorded(tmp_path / "none.db")
    assert not list(tmp_path.iterdir())
