"""Running a command locked down, with bounds, as a process group of its own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    seconds: float  # of wall time; the same of CPU time for each process
    memory_bytes: int  # address space of each process
    file_bytes: int  # of any file written


@dataclass(frozen=True)
class Outcome:
    """How the command ended. ``code`` is its exit status, negative for a signal; ``text`` is stdout and stderr."""

    code: int
    text: str
    timed_out: bool


def run(command: tuple[str, ...], work: Path, limits: Limits) -> Outcome:
    """Runs ``command`` in ``work``, the only folder that it may write to."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limits.seconds) + 1, int(limits.seconds) + 1))
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))

    process = subprocess.Popen(command, cwd=work, env={"PATH": "/usr/bin:/bin", "TMPDIR": str(work), "LC_ALL": "C"},
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, preexec_fn=bound)
    try:
        text, _ = process.communicate(timeout=limits.seconds)
        return Outcome(process.returncode, text.decode(errors="replace"), False)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return Outcome(process.returncode, text.decode(errors="replace"), True)
