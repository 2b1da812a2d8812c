"""A driver as a process that answers one JSON line per request, and the answer that it may refuse to work at all."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

DRIVERS = Path(__file__).resolve().parents[1] / "drivers"
_LINES_SHOWN = 12  # of what a driver that died had to say


class Refused(Exception):
    """A driver said, or its death shows, that it cannot do what was asked; the message says why."""


class Process:
    """One engine in a process of its own. ``variables`` are added to the environment."""

    def __init__(
        self,
        name: str,
        python: Path,
        driver: str,
        opening: dict[str, object],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")}
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._child = subprocess.Popen(
            [str(python), str(DRIVERS / driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**env, **(variables or {})},
        )
        self.opened = self.ask(opening)

    def ask(self, request: dict[str, object]) -> dict[str, object]:
        """Raises ``Refused`` when the driver answers with an error, or ends."""
        assert self._child.stdin and self._child.stdout
        answer = ""
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        except BrokenPipeError:
            pass
        if not answer:
            code = self._child.wait()
            raise Refused(f"{self.name} ended with code {code} during {_short(request)}:\n{self._last_words()}")
        decoded = json.loads(answer)
        if "error" in decoded:
            self.close()
            raise Refused(f"{self.name}: {decoded['error']}")
        return decoded

    def close(self) -> None:
        """Lets the driver end by itself, and kills one that does not. May be called again."""
        assert self._child.stdin and self._child.stdout
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._said.close()

    def _last_words(self) -> str:
        self._said.seek(0)
        return "\n".join(self._said.read().decode(errors="replace").splitlines()[-_LINES_SHOWN:])


def _short(request: dict[str, object]) -> str:
    """A trace is thousands of tokens."""
    return str({k: v for k, v in request.items() if k != "requests"})
