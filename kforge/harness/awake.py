"""Processors that do not fall asleep between two commands: their waking is most of what a short audited call's time
scatters by.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kforge.harness.binaries import sleepless


@contextmanager
def awake(cpus: Sequence[int]) -> Iterator[None]:
    """Keeps them busy with nothing, in the scheduler's idle class, which gives way at once to whatever wants to run.

    Where a system has no such class, they sleep as before.
    """
    process = subprocess.Popen([sleepless(), *map(str, cpus)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()
