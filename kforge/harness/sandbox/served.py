"""A confined command that goes on: it is asked and answers line by line, until it is closed."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from kforge.harness.sandbox.launch import (
    Limits,
    Outcome,
    confined,
    describe,
    environment,
    kill_group,
    refuse_unstarted,
)

_ANSWER = 1 << 20  # bytes of one line
_DYING = 10.0  # seconds that a process takes to be gone, at most
_LAST = 8 << 10  # bytes of the end of what it said beside its answers


class Served:
    """``command`` confined as by ``run``, with ``fds`` left open to it under their own numbers. ``limits.seconds``
    bounds the processor time of all its answers together.

    Raises KforgeError where it cannot be started.
    """

    def __init__(self, command: Sequence[str], work: Path, limits: Limits, readable: Sequence[str],
                 fds: Sequence[int] = ()) -> None:
        self._command = command
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._left = b""
        self._ended = False  # it closed its end: dead, or about to be
        self._process = subprocess.Popen(confined(command, work, limits, readable, describe().needed), cwd=work,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                                         env=environment(command), start_new_session=True, pass_fds=tuple(fds))

    def ask(self, line: bytes, seconds: float) -> bytes | None:
        """Its answer to a line; None when it is dead or did not answer in time: ``end`` says which."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._ended = True
            return None
        return self._line(time.monotonic() + seconds)

    def _line(self, until: float) -> bytes | None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._left:
                if len(self._left) > _ANSWER or not selector.select(max(0.0, until - time.monotonic())):
                    return None
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                if not more:
                    self._ended = True
                    return None
                self._left += more
        answer, _, self._left = self._left.partition(b"\n")
        return answer

    def end(self) -> Outcome:
        """Ends it. ``timed_out``: it was still alive; ``text``: the last that it said beside its answers."""
        try:
            self._process.wait(_DYING if self._ended else 0)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        kill_group(self._process)
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - _LAST))
        text = self._said.read(_LAST).decode(errors="replace")
        self.close()
        refuse_unstarted(self._process, self._command, text)
        return Outcome(self._process.returncode, text, timed_out)

    def close(self) -> None:
        """Also after ``end``."""
        if self._process.poll() is None:
            kill_group(self._process)
        for file in (self._process.stdin, self._process.stdout, self._said):
            if file is not None and not file.closed:
                try:
                    file.close()
                except OSError:  # what it never read
                    continue

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
