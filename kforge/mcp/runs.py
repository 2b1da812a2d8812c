"""A client's run: a folder below runs/ that it writes sources into, by names that cannot lead elsewhere."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kforge.core.errors import sentence_of
from kforge.mcp.arguments import MOST_TEXT
from kforge.mcp.failures import CallFailed, Refusal, bad_input

_PREFIX = "agent-"  # no tuning run's folder begins so
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,47}\Z")
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}\.(cc|cc\.j2)\Z")
_CALLS = "calls.jsonl"
_MOST_SOURCES = 200
_MOST_RUNS = 1000
_MOST_BYTES = 4 * MOST_TEXT  # of UTF-8
_MOST_CALLS = 16 << 20  # bytes of calls.jsonl
_MOST_LINE = 8000
_SHOWN = 20


@dataclass(frozen=True)
class File:
    name: str
    bytes: int
    modified: str  # ISO 8601, UTC


@dataclass(frozen=True)
class Run:
    """Every file is opened below the folder's own handle, and no link is followed."""

    name: str
    path: Path

    def write(self, name: str, text: str) -> None:
        """The file is the old one or the new one, never a part. Raises CallFailed."""
        data = text.encode()
        draft = f".{secrets.token_hex(8)}"
        with self._folder() as folder:
            files = os.listdir(folder)
            if _checked(name) not in files and sum(f.startswith(".") or f != _CALLS for f in files) >= _MOST_SOURCES:
                raise bad_input(f"run {self.name} holds {_MOST_SOURCES} sources already: open another one")
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                with os.fdopen(os.open(draft, flags, 0o644, dir_fd=folder), "wb") as file:
                    file.write(data)
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise _os_failure(error, f"{self.path / name} cannot be written") from error

    def read(self, name: str) -> str:
        """Raises CallFailed."""
        with self._folder() as folder:
            data = _read(folder, _checked(name), self.path, _MOST_BYTES)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise bad_input(f"{self.path / name} is not UTF-8 text") from None

    def sources(self) -> list[File]:
        """By name."""
        with self._folder() as folder:
            found = []
            for name in sorted(filter(_SOURCE.match, os.listdir(folder))):
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode):
                    modified = datetime.fromtimestamp(facts.st_mtime, UTC).isoformat(timespec="seconds")
                    found.append(File(name, facts.st_size, modified))
            return found

    def note(self, tool: str, asked: dict[str, Any], outcome: dict[str, Any]) -> None:
        """A line of ``calls.jsonl``: what was asked for and what came of it. A full disk loses the line only."""
        line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "tool": tool, "asked": asked}
        text = json.dumps({**line, "outcome": outcome})
        if len(text) > _MOST_LINE:
            text = json.dumps({"at": line["at"], "tool": tool, "outcome": "too long to be kept"})
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with (
            contextlib.suppress(OSError, CallFailed),
            self._folder() as folder,
            os.fdopen(os.open(_CALLS, flags, 0o644, dir_fd=folder), "ab") as file,
        ):
            if file.tell() < _MOST_CALLS:
                file.write(text.encode() + b"\n")

    def calls(self) -> list[str]:
        """The last lines of ``calls.jsonl``."""
        with self._folder() as folder:
            if _CALLS not in os.listdir(folder):
                return []
            return _read(folder, _CALLS, self.path, 2 * _MOST_CALLS).decode(errors="replace").splitlines()[-_SHOWN:]

    @contextlib.contextmanager
    def _folder(self) -> Iterator[int]:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise _os_failure(error, f"{self.path} is no folder of a run") from error
        try:
            yield handle
        finally:
            os.close(handle)


class Runs:
    """The runs below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own = ""  # the server's own run, once somebody wanted it

    def known(self, name: str) -> Run:
        """The run of this name; "": this server's own. Raises CallFailed where there is none."""
        if not name and not self._own:
            raise bad_input("this server's own run holds nothing yet: write_source makes it")
        if (run := self._named(name or self._own)) is None:
            raise bad_input(f"there is no run {name!r}: open_run makes it")
        return run

    def open(self, name: str) -> Run:
        """The same, made if there is none. Raises CallFailed."""
        if not name:
            self._own = self._own or f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
            name = self._own
        if (run := self._named(name)) is not None:
            return run
        path = self._path(name)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if sum(1 for _ in self._root.glob(f"{_PREFIX}*")) >= _MOST_RUNS:
                raise bad_input(f"{self._root} holds {_MOST_RUNS} runs of agents already: use one of them")
            path.mkdir()
        except FileExistsError:
            raise bad_input(f"{path} is no folder: use another name") from None
        except OSError as error:
            raise _os_failure(error, f"{path} cannot be made") from error
        return Run(name, path)

    def _path(self, name: str) -> Path:
        if not _NAME.match(name):
            raise bad_input(f"{name!r} is no name of a run: lower-case letters, digits and '-', at most 48")
        return self._root / f"{_PREFIX}{name}"

    def _named(self, name: str) -> Run | None:
        path = self._path(name)
        return Run(name, path) if path.is_dir() and not path.is_symlink() else None


def _checked(name: str) -> str:
    if not _SOURCE.match(name):
        raise bad_input(f"{name!r} is no name of a source: letters, digits, '_' and '-', then .cc or .cc.j2")
    return name


def _read(folder: int, name: str, path: Path, most: int) -> bytes:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise bad_input(f"{path / name} is no plain file")
            data = file.read(most + 1)
    except FileNotFoundError:
        raise bad_input(f"there is no {name} in {path}: write_source makes it") from None
    except OSError as error:
        raise _os_failure(error, f"{path / name} is no plain file") from error
    if len(data) > most:
        raise bad_input(f"{path / name} is larger than {most} bytes")
    return data


def _os_failure(error: OSError, where: str) -> CallFailed:
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
        return bad_input(where)
    return CallFailed(Refusal.BAD_INPUT, f"{where}: {sentence_of(error)}")
