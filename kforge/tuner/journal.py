"""A run's folder: one append-only journal that a killed process is resumed from."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from kforge.core.errors import KforgeError, sentence_of
from kforge.core.trial import Audit, Decision, Failure, FailureClass, RejectReason, Timing, Trial, Verdict
from kforge.core.workload import attrs


class Event(StrEnum):
    """Kinds of journal lines. Everything measured or decided is one line, written before it is acted on."""

    STARTED = "started"  # the run's options
    TASK = "task"  # a problem with its buckets, weights and limits
    PROPOSAL = "proposal"  # a template that somebody wrote for a task; the file lies in the run's folder
    TRIAL = "trial"
    EMPTY_CALL = "empty_call"  # what a call takes whose kernel does nothing, once in a run
    LAYOUT = "layout"  # the panel height chosen for a problem
    VERDICT = "verdict"
    SETTLED = "settled"  # a problem is done: its winners are in the registry
    LAYOUT_GAIN = "layout_gain"  # the engine in one mode with a changed layout against the one before
    PROMOTION = "promotion"
    TABLE = "table"  # tokens/s of the engine
    FINISHED = "finished"


@dataclass(frozen=True)
class Line:
    kind: Event
    at: float  # seconds of budget used when it was written, over all processes of the run
    data: dict


class RunFolder:
    """``runs/<id>/journal.jsonl`` and the files beside it. A last line torn by a kill is dropped on opening.

    ``damaged`` counts other lines that cannot be read: they stay where they are, and what they told is done again.
    What somebody cuts from the file while the run goes on is written again.
    """

    def __init__(self, path: Path, lines: list[Line], out: BinaryIO, text: bytes = b"", damaged: int = 0):
        self.path = path
        self.lines = lines
        self.damaged = damaged
        self._text = bytearray(text)  # of the file, as this process left it
        self._began = time.monotonic() - (lines[-1].at if lines else 0.0)
        self._out = out  # open for appending and locked

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def used_seconds(self) -> float:
        """Time spent in this run, the time before a kill included."""
        return time.monotonic() - self._began

    @classmethod
    def create(cls, root: Path, model: str) -> RunFolder:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = root / f"{stamp}-{_slug(model)}-{secrets.token_hex(2)}"
        try:
            path.mkdir(parents=True)
            return cls(path, [], _locked(path))
        except OSError as error:
            raise KforgeError(
                f"cannot create the run folder {path}: {error.strerror}; choose another --runs-dir"
            ) from error

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        if not (path / "journal.jsonl").is_file():
            raise KforgeError(f"{path} is not a run folder (it has no journal.jsonl); see: kforge runs list")
        try:
            out = _locked(path)  # first: what looks torn may be a line that another process is writing
            found = _read(path / "journal.jsonl")
            out.truncate(len(found.text))
        except OSError as error:
            raise KforgeError(f"cannot go on with {path}: {sentence_of(error)}") from error
        if not found.lines or found.lines[0].kind is not Event.STARTED:
            out.close()
            raise KforgeError(f"{path}/journal.jsonl does not begin with a run's options; start a new run")
        return cls(path, found.lines, out, found.text, found.damaged)

    @classmethod
    def lines_of(cls, path: Path) -> list[Line]:
        """Read-only view, for reports on a run that may still be going."""
        return _read(path / "journal.jsonl").lines

    def write(self, kind: Event, data: dict) -> None:
        """Append one line and force it to the disk, so that a kill loses at most what was not yet decided."""
        line = Line(kind, round(self.used_seconds, 3), data)
        text = (json.dumps({"kind": kind.value, "at": line.at, "data": data}) + "\n").encode()
        try:
            if not self._restore():
                self._end_line()
            self._out.write(text)
            self._out.flush()
            os.fsync(self._out.fileno())
        except OSError as error:
            raise KforgeError(
                f"cannot write {self.path}/journal.jsonl: {error.strerror}; free some space"
            ) from error
        self._text += text
        self.lines.append(line)

    def _restore(self) -> bool:
        """Writes again what somebody cut off; False where the file was edited in another way."""
        if os.fstat(self._out.fileno()).st_size == len(self._text):
            return True
        left = (self.path / "journal.jsonl").read_bytes()
        if not self._text.startswith(left):
            return False
        self._out.write(self._text[len(left) :])
        return True

    def _end_line(self) -> None:
        """The next line must not join what stands in an edited file."""
        left = (self.path / "journal.jsonl").read_bytes()
        if not left.endswith(b"\n"):
            self._out.write(b"\n")
            left += b"\n"
        self._text = bytearray(left)

    def of(self, kind: Event) -> list[dict]:
        return [line.data for line in self.lines if line.kind is kind]

    @property
    def measured(self) -> bool:
        """Whether it holds more than its options."""
        return len(self.lines) > 1

    def discard(self) -> None:
        """Removes a run that never measured anything; one in which something else was recorded, such as what a model
        cost, stays."""
        self.close()
        if {file.name for file in self.path.iterdir()} - {"journal.jsonl", "study.journal"}:
            return
        for file in (self.path / "journal.jsonl", self.path / "study.journal"):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody put something else there
            self.path.rmdir()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk, which write has told of; or it is closed already
            self._restore()
        with contextlib.suppress(OSError):  # the rest of a line that a full disk did not take
            self._out.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _locked(folder: Path) -> BinaryIO:
    """The journal, for appending by this process alone. Raises OSError and, when another has it, KforgeError."""
    out = open(folder / "journal.jsonl", "ab")  # noqa: SIM115 - lives as long as the run
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        out.close()
        raise KforgeError(f"another process is working on the run {folder}; wait for it or end it") from None
    return out


@dataclass(frozen=True)
class _Journal:
    """A journal's file as it is: its ``text`` up to the end of its last whole line."""

    lines: list[Line]
    damaged: int
    text: bytes


def _read(path: Path) -> _Journal:
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    lines: list[Line] = []
    damaged = 0
    for text in whole.split(b"\n")[:-1]:
        try:
            document = json.loads(text)
            lines.append(Line(Event(document["kind"]), float(document["at"]), document["data"]))
        except (ValueError, KeyError, TypeError):
            damaged += 1
    return _Journal(lines, damaged, whole)


def trial_to_json(trial: Trial) -> dict:
    data = dataclasses.asdict(trial)
    data["params"] = dict(trial.params)
    if trial.failure:
        data["failure"]["kind"] = trial.failure.kind.value
    return data


def trial_from_json(data: dict) -> Trial:
    timing = Timing(**data["timing"]) if data["timing"] else None
    failure = data["failure"]
    rebuilt = Failure(FailureClass(failure["kind"]), failure["reason"], failure["detail"]) if failure else None
    return Trial(**{**data, "params": attrs(data["params"]), "timing": timing, "failure": rebuilt})


def verdict_from_json(data: dict) -> Verdict:
    """From ``dataclasses.asdict`` of a verdict, through JSON."""
    reason = RejectReason(data["reason"]) if data["reason"] else None
    per_shape = tuple((workload, gain) for workload, gain in data["per_shape"])
    audit = Audit(**data["audit"]) if data.get("audit") else None
    decision = Decision(data["decision"])
    return Verdict(**{**data, "decision": decision, "reason": reason, "per_shape": per_shape, "audit": audit})


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in Path(text).stem.lower())[:32].strip("-")
