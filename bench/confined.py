"""A driver of a stranger's code: a Python process in the sandbox that answers JSON lines through two named pipes."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import kforge
from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError
from kforge.harness.sandbox import Limits, Outcome, run
from kforge.importing.importer import readable

HERE = Path(__file__).parent
_SEE_CPU = ("/proc/cpuinfo", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom")  # OpenMP and compilers look
_LIMITS = Limits(seconds=6 * 3600.0, memory_bytes=64 << 30, file_bytes=4 << 30)
_LOOK = 0.2  # seconds between two looks at whether it still lives


class Confined:
    """Runs ``drivers/NAME`` in a folder of its own, ``work``, in which ``files`` lie. A context manager."""

    def __init__(self, driver: str, files: dict[str, str]) -> None:
        self._driver, self._files = driver, files
        self._place = draft_folder()
        self._ended: Outcome | KforgeError | None = None

    def __enter__(self) -> Confined:
        self.work = self._place.__enter__()
        shutil.copyfile(HERE / "drivers" / self._driver, self.work / self._driver)
        (self.work / "kforge").symlink_to(Path(kforge.__file__).parent)
        for name, text in self._files.items():
            (self.work / name).write_text(text, encoding="utf-8")
        for name in ("ask", "answer"):
            os.mkfifo(self.work / name)
        # Open at both ends, so that neither opening nor writing waits for the driver.
        self._ask, self._answer = (os.open(self.work / name, os.O_RDWR) for name in ("ask", "answer"))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        command = [sys.executable, "-I", "-B", "-X", "utf8", self._driver]
        try:
            self._ended = run(command, self.work, _LIMITS, (*readable(), *_SEE_CPU))
        except KforgeError as error:
            self._ended = error

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer. Raises KforgeError for one that says what failed, and for a driver that ended."""
        os.write(self._ask, (json.dumps(request) + "\n").encode())
        text = b""
        while not text.endswith(b"\n"):
            if select.select([self._answer], [], [], _LOOK)[0]:
                text += os.read(self._answer, 1 << 16)
            elif not self._thread.is_alive():
                raise KforgeError(f"{self._driver} ended: {self._last_words()}")
        said = json.loads(text)
        if "error" in said:
            raise KforgeError(said["error"])
        return said

    def _last_words(self) -> str:
        if not isinstance(self._ended, Outcome):
            return str(self._ended)
        lines = [line for line in self._ended.text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit status {self._ended.code}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        os.write(self._ask, b'{"do": "end"}\n')
        self._thread.join(timeout=30)
        for pipe in (self._ask, self._answer):
            os.close(pipe)
        self._place.__exit__(kind, error, trace)
