"""Writing to the registry, a SQLite database (WAL). Reading for look-ups is ``snapshot``."""

from __future__ import annotations

import datetime
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, func, inspect, select, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from kforge.core.drafts import sweep
from kforge.core.errors import KforgeError, sentence_of
from kforge.core.kernel import KernelRecord, KernelState, Settled
from kforge.core.lesson import Evidence, Lesson, Subject
from kforge.core.paths import registry_path, store_path
from kforge.core.seed import Seed
from kforge.core.trial import Trial
from kforge.core.workload import Attr, Problem, attrs
from kforge.registry import lessons, seeds
from kforge.registry.advice import advice
from kforge.registry.schema import EventRow, KernelRow, RunRow, SettledRow, TrialRow
from kforge.registry.snapshot import Snapshot, read
from kforge.registry.store import Store

PATIENCE = 30.0  # seconds that a writer waits for another
_READS = "kforge_reads"  # execution option: a transaction that only reads
MIGRATIONS = Path(__file__).parent / "migrations"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class RegistryBusy(KforgeError):
    """Another process measures for this registry, or removes its files."""


@dataclass(frozen=True)
class Tried:
    """A parameter set that was timed once."""

    template: str
    params: tuple[tuple[str, Attr], ...]


class Registry:
    """The database and the artifact store beside it. Open with ``Registry.open``; close or use as a context manager."""

    def __init__(self, engine: Engine, store: Store, name: str):
        self._engine = engine
        self.store = store
        self.name = name

    @classmethod
    def open(cls, path: Path | None = None) -> Registry:
        """Open or create and bring the schema up to date; a KforgeError says why when that can't be."""
        path = path or registry_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KforgeError(
                f"cannot create {path.parent}: {error.strerror}; set KFORGE_HOME to a writable folder"
            ) from error
        engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": PATIENCE})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        registry = cls(engine, Store(store_path(path)), str(path))
        try:
            registry._migrate()
        except (DatabaseError, sqlite3.Error) as error:
            what = advice(path, str(_cause(error)))
            raise KforgeError(f"registry {path} cannot be opened: {_cause(error)}; {what}") from error
        return registry

    def _migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        known = ScriptDirectory.from_config(config)
        with self._engine.execution_options(**{_READS: True}).begin() as connection:
            if _schema_of(connection) == known.get_current_head():
                return
        with self._engine.begin() as connection:
            current = _schema_of(connection)
            if current == known.get_current_head():  # another process was faster
                return
            if current is not None and current not in {s.revision for s in known.walk_revisions()}:
                raise KforgeError(
                    f"registry {self.name} was written by a newer kforge (schema {current}); upgrade kforge to use it"
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _session(self, *, reads: bool = False) -> Iterator[Session]:
        try:
            with Session(self._engine.execution_options(**{_READS: reads})) as session, session.begin():
                yield session
        except (DatabaseError, sqlite3.Error) as error:
            what = advice(Path(self.name), str(_cause(error)))
            raise KforgeError(
                f"registry {self.name}: {_cause(error)}; nothing of this step was written, {what}"
            ) from error

    # -- writing ---------------------------------------------------------------------------------------------------

    def begin_run(self, run: str, model: str, target_identity: str, folder: Path) -> None:
        """Idempotent, so that a resumed run calls it again."""
        with self._session() as session:
            if session.get(RunRow, run) is None:
                session.add(
                    RunRow(id=run, model=model, target_identity=target_identity, folder=str(folder), created=now())
                )

    def record_trial(self, run: str, target_identity: str, problem: Problem, trial: Trial) -> None:
        """One row per (run, workload, candidate): recording again changes nothing."""
        with self._session() as session:
            seen = select(TrialRow.id).where(
                TrialRow.run == run,
                TrialRow.workload == trial.workload,
                TrialRow.candidate_hash == trial.candidate_hash,
            )
            if session.execute(seen).first():
                return
            session.add(
                TrialRow(
                    run=run,
                    target_identity=target_identity,
                    problem=problem.key,
                    workload=trial.workload,
                    candidate_hash=trial.candidate_hash,
                    template=trial.template,
                    params=dict(trial.params),
                    seconds=trial.timing.seconds if trial.timing else None,
                    spread=trial.timing.spread if trial.timing else None,
                    failure=trial.failure.kind.value if trial.failure else None,
                    reason=trial.failure.reason if trial.failure else "",
                    created=now(),
                )
            )

    def accept(self, kernel: KernelRecord, artifact: bytes, source: str, evidence: dict[str, object]) -> int:
        """Store an accepted candidate with its files and return its id; idempotent per run, bucket and candidate."""
        return self._keep(kernel, artifact, source, KernelState.ACCEPTED, "judged better than the incumbent", evidence)

    def keep_checked(self, kernel: KernelRecord, artifact: bytes, source: str, where: str,
                     evidence: dict[str, object]) -> int:
        """Store a candidate that was built and found right for a target that was not at hand (``where``: what stood in
        for it). It is never served: a tune on the target times it first. Idempotent as ``accept`` is."""
        reason = f"built for {kernel.target_name}, checked by {where}, not timed: no such device was here"
        return self._keep(kernel, artifact, source, KernelState.CHECKED, reason, evidence)

    def _keep(self, kernel: KernelRecord, artifact: bytes, source: str, state: KernelState, reason: str,
              evidence: dict[str, object]) -> int:
        if self.store.put(artifact) != kernel.artifact_hash or self.store.put(source.encode()) != kernel.source_hash:
            raise KforgeError(f"kernel {kernel.candidate_hash}: its files do not have the hashes that it names")
        with self._session() as session:
            seen = select(KernelRow.id).where(
                KernelRow.run == kernel.run,
                KernelRow.bucket_key == kernel.bucket_key,
                KernelRow.problem == kernel.problem.key,
                KernelRow.candidate_hash == kernel.candidate_hash,
            )
            if (found := session.execute(seen).scalar()) is not None:
                return found
            row = KernelRow(
                candidate_hash=kernel.candidate_hash,
                operator=kernel.problem.operator,
                problem=kernel.problem.key,
                static=dict(kernel.problem.static),
                bucket=dict(kernel.bucket),
                bucket_key=kernel.bucket_key,
                target_identity=kernel.target_identity,
                target_name=kernel.target_name,
                operator_version=kernel.operator_version,
                abi_version=kernel.abi_version,
                numerics=kernel.numerics.value,
                layouts={name: [layout.family, layout.version, dict(layout.params)] for name, layout in kernel.layouts},
                backend=kernel.backend,
                template=kernel.template,
                template_hash=kernel.template_hash,
                params=dict(kernel.params),
                source_hash=kernel.source_hash,
                artifact_hash=kernel.artifact_hash,
                compiler=kernel.compiler,
                seconds=kernel.seconds,
                default_seconds=kernel.default_seconds,
                gain=kernel.gain,
                gain_lower=kernel.gain_lower,
                run=kernel.run,
                proposer=kernel.proposer,
                created=now(),
            )
            session.add(row)
            session.flush()
            session.add(
                EventRow(
                    kernel=row.id,
                    state=state.value,
                    reason=reason,
                    evidence=evidence,
                    created=now(),
                )
            )
            return row.id

    def set_state(
        self, kernel_id: int, state: KernelState, reason: str, evidence: dict[str, object] | None = None
    ) -> None:
        """Append an event. Promoting retires what was promoted before at the same problem, bucket and target."""
        with self._session() as session:
            row = session.get(KernelRow, kernel_id)
            if row is None:
                raise KforgeError(f"registry {self.name} has no kernel {kernel_id}")
            if state is KernelState.PROMOTED:
                same = select(KernelRow.id).where(
                    KernelRow.problem == row.problem,
                    KernelRow.bucket_key == row.bucket_key,
                    KernelRow.target_identity == row.target_identity,
                    KernelRow.id != kernel_id,
                )
                for other in session.execute(same).scalars():
                    if _state(session, other) is KernelState.PROMOTED:
                        session.add(
                            EventRow(
                                kernel=other,
                                state=KernelState.RETIRED.value,
                                reason=f"replaced by kernel {kernel_id}",
                                evidence={},
                                created=now(),
                            )
                        )
            session.add(
                EventRow(kernel=kernel_id, state=state.value, reason=reason, evidence=evidence or {}, created=now())
            )

    def settle(self, run: str, target_identity: str, settled: Settled) -> None:
        """Record what a run decided for a problem, so that the next one need not tune it again."""
        with self._session() as session:
            session.add(
                SettledRow(
                    target_identity=target_identity,
                    problem=settled.problem,
                    rows=settled.rows,
                    buckets=list(settled.buckets),
                    templates=settled.templates,
                    run=run,
                    created=now(),
                )
            )

    def learn(self, subject: Subject, evidence: Evidence) -> int:
        """Keep what an idea came to, and return the number of the lesson that it speaks for or against."""
        with self._session() as session:
            return lessons.add(session, subject, evidence, now())

    def remove_lesson(self, number: int, reason: str) -> None:
        """Its history stays. Raises KforgeError where there is no such lesson."""
        with self._session() as session:
            if not lessons.remove(session, number, reason, now()):
                raise KforgeError(f"there is no lesson {number} in {self.name}; see: kforge lessons list")

    def add_seeds(self, found: Iterable[Seed]) -> int:
        """Keep parameters that were measured elsewhere, for searches to begin with; how many were not there yet."""
        with self._session() as session:
            return seeds.add(session, found, now())

    @contextmanager
    def tuning_lock(self, what: str = "tune") -> Iterator[None]:
        """Held while measuring, because two tunes on one machine would only measure each other, and while files are
        removed: a tune stores a kernel's files before its entry. Whoever takes it sweeps up what the killed left."""
        path = Path(self.name).with_suffix(".tuning")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise KforgeError(f"cannot lock the registry: {sentence_of(error)}") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.pread(handle, 64, 0).decode(errors="replace").strip() or "process unknown"
                raise RegistryBusy(f"another {owner} is using {self.name}; wait for it or end it") from error
            with suppress(OSError):  # a full disk: only the name is missing
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{what} (process {os.getpid()})".encode(), 0)
            sweep()
            yield
        finally:
            os.close(handle)

    # -- reading ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """All kernels and settlements as they are now. KforgeError when the database was moved away meanwhile."""
        if not Path(self.name).exists():
            raise KforgeError(f"registry {self.name} is gone although it was open: put it back and go on")
        return read(Path(self.name))

    def recorded(self, run: str) -> set[tuple[str, str]]:
        """Workload and candidate of every trial of a run."""
        with self._session(reads=True) as session:
            rows = session.execute(select(TrialRow.workload, TrialRow.candidate_hash).where(TrialRow.run == run))
            return {(r.workload, r.candidate_hash) for r in rows}

    def trial_count(self, run: str) -> int:
        with self._session(reads=True) as session:
            return session.execute(select(func.count()).select_from(TrialRow).where(TrialRow.run == run)).scalar_one()

    def tried(self, problem: Problem, target_identity: str, limit: int = 20) -> list[Tried]:
        """The fastest parameter sets ever timed for this problem on this target, best first: seeds for a search."""
        with self._session(reads=True) as session:
            rows = session.execute(
                select(TrialRow.template, TrialRow.params)
                .where(
                    TrialRow.problem == problem.key,
                    TrialRow.target_identity == target_identity,
                    TrialRow.seconds.is_not(None),
                )
                .order_by(TrialRow.seconds)
                .limit(limit)
            )
            return [Tried(r.template, attrs(r.params)) for r in rows]

    def seeds(self, problem: Problem, target_identity: str) -> list[Seed]:
        """What was measured elsewhere and may begin a search of this problem on this target, the fastest first where
        times are known."""
        with self._session(reads=True) as session:
            found = seeds.everything(session, problem.operator)
        mine = [s for s in found if s.target_identity in ("", target_identity) and s.fits(problem)]
        return sorted(mine, key=lambda s: (s.seconds is None, s.seconds or 0.0, s.id))

    def all_seeds(self) -> list[Seed]:
        with self._session(reads=True) as session:
            return seeds.everything(session)

    def trial_numbers(self, run: str, template: str, limit: int = 6) -> tuple[int, ...]:
        """Trials of a run's template, the fastest first, then those that failed."""
        with self._session(reads=True) as session:
            rows = select(TrialRow.id).where(TrialRow.run == run, TrialRow.template == template)
            order = rows.order_by(TrialRow.seconds.is_(None), TrialRow.seconds, TrialRow.id)
            return tuple(session.execute(order.limit(limit)).scalars())

    def lessons(self) -> list[Lesson]:
        """By number, those removed included."""
        with self._session(reads=True) as session:
            return lessons.everything(session)

    def events(self, kernel_id: int) -> list[EventRow]:
        with self._session(reads=True) as session:
            rows = list(
                session.execute(select(EventRow).where(EventRow.kernel == kernel_id).order_by(EventRow.id)).scalars()
            )
            session.expunge_all()
            return rows


def _schema_of(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("select version_num from alembic_version")).scalar()


def _state(session: Session, kernel_id: int) -> KernelState:
    last = select(EventRow.state).where(EventRow.kernel == kernel_id).order_by(EventRow.id.desc()).limit(1)
    return KernelState(session.execute(last).scalar_one())


def _cause(error: Exception) -> object:
    """SQLite's own error: SQLAlchemy wraps it, except where a connection is prepared."""
    return getattr(error, "orig", None) or error


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # no transactions but those of _begin: sqlite3 would leave tables made outside
    cursor = connection.cursor()
    cursor.execute("pragma journal_mode=wal")
    cursor.execute("pragma synchronous=normal")
    cursor.execute("pragma foreign_keys=on")
    cursor.close()


def _begin(connection: Connection) -> None:
    """Whoever will write waits for the lock before reading: what was read can't be stale when it writes."""
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("begin" if reads else "begin immediate")
