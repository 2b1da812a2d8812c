"""All trials of a registry, read as ``snapshot`` reads kernels: losers and failures are knowledge too."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from kforge.core.errors import KforgeError
from kforge.core.trial import FailureClass
from kforge.core.workload import Attr, Problem, Workload, attrs
from kforge.registry.advice import advice
from kforge.registry.snapshot import PATIENCE, read_only


@dataclass(frozen=True)
class Recorded:
    """A trial as the registry keeps it; ``seconds`` per call is None where it failed or was only checked."""

    run: str
    target_identity: str
    workload: Workload
    candidate_hash: str
    template: str
    params: tuple[tuple[str, Attr], ...]
    seconds: float | None
    spread: float | None
    failure: FailureClass | None
    reason: str
    created: str  # ISO 8601, UTC

    @property
    def problem(self) -> Problem:
        return self.workload.problem


def recorded(path: Path) -> tuple[Recorded, ...]:
    """The trials of the registry at ``path``, oldest first; it must exist. Raises KforgeError when it can't be read."""
    try:
        connection = sqlite3.connect(read_only(path), uri=True, timeout=PATIENCE)
        connection.row_factory = sqlite3.Row
        try:
            return tuple(_trial(row) for row in connection.execute("select * from trial order by id"))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise KforgeError(f"registry {path} cannot be read: {error}; {advice(path, str(error))}") from error
    except (ValueError, TypeError) as error:
        raise KforgeError(f"registry {path} is damaged: {error}; move it away or restore it") from error


def _trial(row: sqlite3.Row) -> Recorded:
    return Recorded(
        row["run"],
        row["target_identity"],
        Workload.parse(row["workload"]),
        row["candidate_hash"],
        row["template"],
        attrs(json.loads(row["params"])),
        row["seconds"],
        row["spread"],
        FailureClass(row["failure"]) if row["failure"] else None,
        row["reason"],
        row["created"],
    )
