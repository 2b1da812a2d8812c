"""One measurement at a time on a machine, among processes that agree on a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType


class Turn:
    """Holds an advisory lock on ``path``, made if need be, from the outermost ``with`` to its end.

    Whoever holds it and dies gives it back. For one thread of each process. Raises OSError where the file cannot be
    made.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._depth = 0

    def __enter__(self) -> Turn:
        if not self._depth:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._depth -= 1
        if not self._depth:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)
