"""What had been recorded at a moment, and whether it is all still there."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults.stage import World

_TABLES = ("run", "trial", "kernel", "event", "settled")


@dataclass(frozen=True)
class Records:
    """Rows of the registry by table, and whole journal lines by run."""

    rows: dict[str, dict[object, tuple]]
    lines: dict[str, list[bytes]]

    @classmethod
    def of(cls, here: World) -> Records:
        return cls(_rows(here.database), {p.name: _whole_lines(p / "journal.jsonl") for p in here.run_folders})

    def lost(self, now: Records) -> list[str]:
        """What of these is not in ``now``, in words."""
        said = []
        for table, rows in self.rows.items():
            gone = [key for key, row in rows.items() if now.rows.get(table, {}).get(key) != row]
            if gone:
                said.append(f"registry: {len(gone)} rows of {table} are lost or changed: {gone[:3]}")
        for run, lines in self.lines.items():
            if now.lines.get(run, [])[: len(lines)] != lines:
                said.append(f"journal of {run}: whole lines that stood before the fault are lost or changed")
        return said

    def unsound(self, stocked: int) -> list[str]:
        """What can't be: trials counted twice, acceptance without a judge, promotion without an engine's word."""
        said = []
        twice = Counter((r[1], r[4], r[5]) for r in self.rows["trial"].values())  # run, workload, candidate
        said += [f"registry: trial {key} is there {n} times" for key, n in twice.items() if n > 1]
        in_registry = set(twice)
        for run, lines in self.lines.items():
            trials = Counter()
            for line in lines:
                document = _document(line)
                if document.get("kind") == "trial":
                    trial = document["data"]["trial"]
                    trials[trial["workload"], trial["candidate_hash"]] += 1
                    failure = trial["failure"]
                    if failure and failure["kind"] != "harness":
                        said.append(f"{run}: a sound kernel is blamed: {failure['kind']}: {failure['reason'][:200]}")
            said += [f"{run}: trial {key} was made {n} times" for key, n in trials.items() if n > 1]
            said += [f"{run}: trial {key} is not in the registry" for key in trials if (run, *key) not in in_registry]
        said += self._unjudged(stocked)
        return said

    def _unjudged(self, stocked: int) -> list[str]:
        said = []
        first: set[object] = set()
        for number, kernel, state, _reason, evidence, *_ in self.rows["event"].values():
            if kernel <= stocked and state != "promoted":
                continue
            told = json.loads(evidence)
            if kernel not in first and kernel > stocked:
                first.add(kernel)
                if state != "accepted" or told.get("verdict", {}).get("decision") != "accepted":
                    said.append(f"kernel {kernel}: event {number} accepts it without the judge's verdict")
            if state == "promoted" and _reason != "stocked" and not _engine_agrees(told):
                said.append(f"kernel {kernel}: event {number} promotes it without the engine's word")
        return said


def _engine_agrees(evidence: dict) -> bool:
    words = evidence.get("engine", [])
    return bool(words) and all(w["same_tokens"] and w["calls"] > 0 for w in words)


def _rows(database: Path) -> dict[str, dict[object, tuple]]:
    with as_it_is(database) as connection:
        return {t: {row[0]: tuple(row) for row in connection.execute(f"select * from {t}")} for t in _TABLES}


def files_in_use(database: Path) -> set[str]:
    """Of accepted and promoted kernels: what the registry answers for."""
    last = "(select state from event where kernel = k.id order by id desc limit 1)"
    with as_it_is(database) as connection:
        rows = connection.execute(f"select artifact_hash, source_hash, {last} from kernel k").fetchall()
    return {digest for *digests, state in rows if state in ("accepted", "promoted") for digest in digests}


@contextlib.contextmanager
def as_it_is(database: Path) -> Iterator[sqlite3.Connection]:
    """A copy, with its log: a process that stands still may hold a lock that nobody else can wait for."""
    with tempfile.TemporaryDirectory(prefix="kforge-faults-") as folder:
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{database}{suffix}", f"{folder}/copy.db{suffix}")
        connection = sqlite3.connect(f"{folder}/copy.db")
        try:
            yield connection
        finally:
            connection.close()


def _whole_lines(journal: Path) -> list[bytes]:
    raw = journal.read_bytes() if journal.exists() else b""
    return raw[: raw.rfind(b"\n") + 1].split(b"\n")[:-1]


def _document(line: bytes) -> dict:
    """A line that a cut tore is no document."""
    try:
        return json.loads(line)
    except ValueError:
        return {}
