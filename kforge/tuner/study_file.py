"""Optuna's journal in a run's folder. It only speeds a search up: all it holds is told again from the run's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend

from kforge.core.errors import KforgeError


class StudyFile(BaseJournalBackend):
    """Read once and appended to from then on.

    The run's folder belongs to this process alone, so there is no lock file that a kill would leave, and nothing that
    happens to the file meanwhile disturbs a search that is going on. Raises ValueError for a line that is no log.
    """

    def __init__(self, path: Path):
        self._path = path
        text = path.read_bytes() if path.exists() else b""
        if text and not text.endswith(b"\n"):
            raise ValueError(f"{path} ends in the middle of a line")
        self._logs: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = [json.dumps(log, separators=(",", ":")) for log in logs]
        try:
            with open(self._path, "ab") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise KforgeError(f"cannot write {self._path}: {error.strerror}; free some space") from error
        self._logs += map(json.loads, lines)


def open_study_file(path: Path) -> JournalStorage:
    """The studies in ``path``, begun again where a kill, a full disk or an editor left what cannot be replayed."""
    try:
        return JournalStorage(StudyFile(path))
    except OSError:
        raise
    except Exception:  # Optuna's replay of a log that lacks some of its lines fails in many ways
        path.unlink()
        return JournalStorage(StudyFile(path))
