"""An immutable view of the registry, read with plain ``sqlite3`` so that a look-up starts in milliseconds."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from kforge.core.defaults import DEFAULT_ROWS
from kforge.core.errors import KforgeError, sentence_of
from kforge.core.kernel import KernelRecord, KernelState, Settled
from kforge.core.layout import Layout
from kforge.core.trial import NumericsClass
from kforge.core.workload import Problem, attrs
from kforge.registry.advice import advice

KNOWN_SCHEMA = "0003"
PATIENCE = 10.0  # seconds that a reader waits where another process holds all of it

_KERNELS = """
select k.*, (select state from event e where e.kernel = k.id order by e.id desc limit 1) as state
from kernel k order by k.id
"""
_SETTLED = """
select * from settled where id in (select max(id) from settled group by target_identity, problem)
"""


@dataclass(frozen=True)
class Snapshot:
    """All kernels, with the state that their last event gave them. Build with ``read`` or ``of``."""

    kernels: tuple[KernelRecord, ...]
    settlements: tuple[tuple[str, Settled], ...] = ()  # target identity, what was settled there
    _served: dict[str, tuple[KernelRecord, ...]] = field(default_factory=dict, compare=False, repr=False)
    _settled: dict[str, Settled] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, kernels: Iterable[KernelRecord], settlements: Iterable[tuple[str, Settled]] = ()) -> Snapshot:
        kernels = tuple(kernels)
        served: dict[str, list[KernelRecord]] = {}
        for kernel in kernels:
            if kernel.state is KernelState.PROMOTED:
                served.setdefault(kernel.problem.key, []).append(kernel)
        settlements = tuple(settlements)
        by_problem = {f"{identity} {settled.problem}": settled for identity, settled in settlements}
        return cls(kernels, settlements, {key: tuple(found) for key, found in served.items()}, by_problem)

    def served(self, problem: Problem) -> tuple[KernelRecord, ...]:
        """Promoted kernels of this very problem, on any target."""
        return self._served.get(problem.key, ())

    def unserved(self, problem: Problem, target_identity: str) -> tuple[KernelRecord, ...]:
        """Accepted kernels of this problem, in whatever layout, that no engine run has promoted, on a target."""
        wanted = problem.without_layout
        return tuple(
            k
            for k in self.kernels
            if k.state is KernelState.ACCEPTED
            and k.problem.operator == wanted.operator
            and k.target_identity == target_identity
            and k.problem.without_layout == wanted
        )

    def waiting(self, problem: Problem, target_identities: Collection[str]) -> tuple[KernelRecord, ...]:
        """Kernels of this very problem that were built and checked for one of these targets, and never timed; the
        newest run's first, of one run in the order in which it kept them (the one predicted fastest first)."""
        found = [k for k in self.kernels if k.state is KernelState.CHECKED and k.problem == problem
                 and k.target_identity in target_identities]
        return tuple(sorted(found, key=lambda k: k.run, reverse=True))

    def settled(self, problem: Problem, target_identity: str) -> Settled | None:
        """What was decided for a problem (without its layout) on a target, None when it was never tuned there."""
        return self._settled.get(f"{target_identity} {problem.key}")

    def rows(self, problem: Problem, target_identity: str) -> int:
        """Panel height of a packed weight: what was chosen for it on the target, else the default."""
        settled = self.settled(problem, target_identity)
        return settled.rows if settled and settled.rows else DEFAULT_ROWS


EMPTY = Snapshot.of(())


def read(path: Path) -> Snapshot:
    """The registry at ``path`` as it is now; empty when there is none. KforgeError when it can't be read."""
    try:
        if not path.exists() or path.stat().st_size == 0:  # another process is about to make it
            return EMPTY
    except OSError as error:
        raise KforgeError(f"registry {sentence_of(error)}") from error
    try:
        connection = sqlite3.connect(read_only(path), uri=True, timeout=PATIENCE)
        connection.row_factory = sqlite3.Row
        try:
            if connection.execute("select count(*) from sqlite_master").fetchone()[0] == 0:
                return EMPTY  # another process is about to make its tables, or was killed before
            schema = connection.execute("select version_num from alembic_version").fetchone()
            if schema is None or schema[0] > KNOWN_SCHEMA:
                found = schema[0] if schema else "none"
                raise KforgeError(
                    f"registry {path} was written by a newer kforge (schema {found}); upgrade kforge to use it"
                )
            kernels = [_record(row) for row in connection.execute(_KERNELS)]
            settlements = [(row["target_identity"], _settlement(row)) for row in connection.execute(_SETTLED)]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise KforgeError(f"registry {path} cannot be read: {error}; {advice(path, str(error))}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise KforgeError(f"registry {path} is damaged: {error}; move it away or restore it") from error
    return Snapshot.of(kernels, settlements)


def read_only(path: Path) -> str:
    """The URI of a registry that is only read.

    Where nobody may write and no log is pending, SQLite must be told so: it would make a lock file.
    """
    log = path.with_name(f"{path.name}-wal")
    still = not os.access(path.parent, os.W_OK) and not log.exists()
    return f"file:{quote(str(path.resolve()))}?mode=ro{'&immutable=1' if still else ''}"


def _settlement(row: sqlite3.Row) -> Settled:
    return Settled(row["problem"], row["rows"], tuple(json.loads(row["buckets"])), row["templates"])


def _record(row: sqlite3.Row) -> KernelRecord:
    layouts = json.loads(row["layouts"])
    return KernelRecord(
        candidate_hash=row["candidate_hash"],
        problem=Problem(row["operator"], attrs(json.loads(row["static"]))),
        bucket=tuple(sorted(json.loads(row["bucket"]).items())),
        target_identity=row["target_identity"],
        target_name=row["target_name"],
        operator_version=row["operator_version"],
        abi_version=row["abi_version"],
        numerics=NumericsClass(row["numerics"]),
        layouts=tuple(
            (name, Layout(family, version, attrs(params))) for name, (family, version, params) in layouts.items()
        ),
        backend=row["backend"],
        template=row["template"],
        template_hash=row["template_hash"],
        params=attrs(json.loads(row["params"])),
        source_hash=row["source_hash"],
        artifact_hash=row["artifact_hash"],
        compiler=row["compiler"],
        seconds=row["seconds"],
        default_seconds=row["default_seconds"],
        gain=row["gain"],
        gain_lower=row["gain_lower"],
        run=row["run"],
        proposer=row["proposer"],
        state=KernelState(row["state"]),
        created=row["created"],
        id=row["id"],
    )
