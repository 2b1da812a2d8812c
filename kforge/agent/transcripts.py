"""Calls of models on disk, one file each: for people to read, for reports, and for replays."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kforge.agent.calls import CallFailure, CallFailureKind, Message, Reply, Request, Role, Tool, Usage
from kforge.core.drafts import write_whole
from kforge.core.errors import KforgeError, sentence_of

FOLDER = "calls"
_FORMAT = 1
_LINES = "|"  # the one key of an object that stands for a text of several lines


@dataclass(frozen=True)
class Transcript:
    """One call. ``first``: what was wrong with a first answer, when the model was asked once more.

    ``usd``: of all that the call took, None where its tokens have no price.
    """

    request: Request
    provider: str
    model: str  # as it was asked for
    answer: Reply | CallFailure
    first: CallFailure | None
    usd: float | None
    started: datetime
    seconds: float


class Transcripts:
    """Of the run in this folder: ``calls/0001-analyst.json`` and so on. Thread-safe."""

    def __init__(self, run: Path):
        self._folder = run / FOLDER
        self._lock = threading.Lock()
        self._replies: dict[str, Reply] = {}
        self._last = 0
        for path, transcript in _load(self._folder):
            self._last = max(self._last, _number(path))
            self._remember(transcript)

    def write(self, transcript: Transcript) -> Path:
        """The file, whole and on the disk. Raises KforgeError."""
        with self._lock:
            self._last += 1
            path = self._folder / f"{self._last:04d}-{transcript.request.role}.json"
            self._remember(transcript)
        text = json.dumps(to_json(transcript), indent=1, ensure_ascii=False) + "\n"
        try:
            write_whole(path, text.encode(), durable=True)
        except OSError as error:
            raise KforgeError(f"cannot write {path}: {error.strerror}; free some space") from error
        return path

    def reply_to(self, request: Request) -> Reply | None:
        """What was answered to the very same request before the run was resumed."""
        with self._lock:
            return self._replies.get(_identity(request))

    def _remember(self, transcript: Transcript) -> None:
        if isinstance(transcript.answer, Reply):
            self._replies[_identity(transcript.request)] = transcript.answer


def load(folder: Path) -> list[Transcript]:
    """A run's calls in the order in which they were answered, from its folder or its folder of calls.

    Raises KforgeError for a file that cannot be read, or whose request was edited.
    """
    return [transcript for _, transcript in filed(folder)]


def filed(folder: Path) -> list[tuple[Path, Transcript]]:
    """The same with their files."""
    inside = folder / FOLDER
    return list(_load(inside if inside.is_dir() else folder))


def _load(folder: Path) -> Iterable[tuple[Path, Transcript]]:
    for path in sorted(folder.glob("[0-9]*-*.json"), key=lambda p: (_number(p), p.name)):
        yield path, _read(path)


def _number(path: Path) -> int:
    found = re.match(r"\d+", path.name)
    return int(found[0]) if found else 0


def _read(path: Path) -> Transcript:
    try:
        document = json.loads(path.read_bytes())
        transcript = from_json(document)
    except OSError as error:
        raise KforgeError(sentence_of(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KforgeError(f"{path} is no record of a call: {type(error).__name__} {error}") from error
    if document["hash"] != transcript.request.hash:
        raise KforgeError(f"{path} was edited: its request is not the one that was sent")
    return transcript


def _identity(request: Request) -> str:
    return f"{request.role}/{request.parent}/{request.ordinal}/{request.hash}"


def to_json(transcript: Transcript) -> dict[str, Any]:
    """Texts of several lines become lists of lines, so that people can read them."""
    answer = transcript.answer
    return {
        "format": _FORMAT,
        "call": transcript.request.key,
        "hash": transcript.request.hash,
        "provider": transcript.provider,
        "model": transcript.model,
        "started": transcript.started.astimezone(UTC).isoformat(timespec="milliseconds"),
        "seconds": round(transcript.seconds, 3),
        "usd": transcript.usd,
        "request": _folded(dataclasses.asdict(transcript.request)),
        "first": None if transcript.first is None else _folded(dataclasses.asdict(transcript.first)),
        "reply" if isinstance(answer, Reply) else "failure": _folded(dataclasses.asdict(answer)),
    }


def from_json(document: dict[str, Any]) -> Transcript:
    """Raises ValueError, KeyError, TypeError or AttributeError for what ``to_json`` did not make."""
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']} is not known")
    answer: Reply | CallFailure
    if "reply" in document:
        reply = _unfolded(document["reply"])
        answer = Reply(**{**reply, "usage": Usage(**reply["usage"])})
    else:
        answer = _failure(document["failure"])
    first = document["first"]
    return Transcript(
        _request(_unfolded(document["request"])),
        str(document["provider"]),
        str(document["model"]),
        answer,
        None if first is None else _failure(first),
        document["usd"],
        datetime.fromisoformat(document["started"]),
        float(document["seconds"]),
    )


def _request(data: dict[str, Any]) -> Request:
    messages = tuple(Message(**message) for message in data["messages"])
    return Request(**{**data, "role": Role(data["role"]), "messages": messages, "tool": Tool(**data["tool"])})


def _failure(folded: dict[str, Any]) -> CallFailure:
    data = _unfolded(folded)
    return CallFailure(**{**data, "kind": CallFailureKind(data["kind"]), "usage": Usage(**data["usage"])})


def _folded(value: Any) -> Any:
    if isinstance(value, str):
        return {_LINES: value.split("\n")} if "\n" in value else value
    if isinstance(value, dict):
        inner = {name: _folded(inner) for name, inner in value.items()}
        return {_LINES: inner} if value.keys() == {_LINES} else inner
    return [_folded(inner) for inner in value] if isinstance(value, list | tuple) else value


def _unfolded(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() != {_LINES}:
            return {name: _unfolded(inner) for name, inner in value.items()}
        inner = value[_LINES]
        return "\n".join(inner) if isinstance(inner, list) else {_LINES: _unfolded(inner[_LINES])}
    return [_unfolded(inner) for inner in value] if isinstance(value, list) else value
