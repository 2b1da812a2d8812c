"""Processes under test: started, seen to reach the moment, stopped, killed, and looked for afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

INSIDE = Path(__file__).resolve().parent / "inside"
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 3600.0  # seconds that a command may take: a shared machine can stand still for long
_PR_SET_CHILD_SUBREAPER = 36
_TICK = 0.005


@dataclass(frozen=True)
class Ended:
    """``code`` is the exit status, negative for a signal."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def sentences(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("kforge: ")]


class Process:
    """One kforge command with a plan for ``inside/sitecustomize.py``."""

    def __init__(self, words: tuple[str, ...], env: dict[str, str], folder: Path, plan: dict) -> None:
        self.words = words
        self._folder = folder
        self.reached = folder / "reached"
        self.reached.unlink(missing_ok=True)
        plan = {"reached": str(self.reached), **plan}
        env = {**env, "PYTHONPATH": f"{INSIDE}{os.pathsep}{ROOT}", "KFORGE_TEST_FAULT": json.dumps(plan)}
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kforge.cli.main", *words], env=env, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, cwd=folder,
            )
        self.seen = psutil.Process(self._process.pid)
        self.begun = time.monotonic()

    def wait_until(self, moment: Callable[[], bool]) -> bool:
        """True when the moment came; False when the process ended before."""
        until = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            if moment():
                return True
            if time.monotonic() > until:
                raise TimeoutError(f"{' '.join(self.words)} did not end")
            time.sleep(_TICK)
        return False

    @property
    def stopped_itself(self) -> bool:
        return self.reached.exists() and self.stands

    @property
    def stands(self) -> bool:
        return self._status() == psutil.STATUS_STOPPED

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _status(self) -> str:
        try:
            return self.seen.status()
        except psutil.NoSuchProcess:
            return psutil.STATUS_DEAD

    def below(self) -> list[psutil.Process]:
        try:
            return self.seen.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            self._process.send_signal(number)

    def ended(self) -> Ended:
        try:
            self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise TimeoutError(f"{' '.join(self.words)} did not end") from None
        out, err = ((self._folder / name).read_text(errors="replace") for name in ("out", "err"))
        return Ended(self.words, self._process.returncode, out, err)


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def adopt_orphans() -> None:
    """Whatever loses its parent below this process becomes its child, and so cannot hide."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphans")


def leftover_processes(seconds: float = 20.0) -> list[str]:
    """Processes below this one that do not end by themselves in time; they are ended then."""
    me = psutil.Process()
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = me.children(recursive=True)
        if not left or time.monotonic() > until:
            break
        time.sleep(0.02)
    told = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            told.append(f"{process.name()} {' '.join(process.cmdline())[:80]} ({process.status()})")
            process.kill()
    return told
