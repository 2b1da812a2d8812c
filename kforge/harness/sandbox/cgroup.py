"""The control group that this process is in: what bounds it and all its children together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_HUGE = 1 << 60  # version 1 says "no limit" by a number about as large as memory can be


@dataclass(frozen=True)
class CgroupLimits:
    """0: not bounded. ``where``: path of the group, "" where none is to be seen."""

    where: str
    memory_bytes: int
    processes: int


def limits(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> CgroupLimits:
    """Read from the kernel's files, version 1 or 2; a limit that lies higher up in a hierarchy is not seen."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return CgroupLimits("", 0, 0)
    where, memory, processes = "", 0, 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        if not controllers:  # version 2, where it is the only one or beside version 1
            where = where or path
            memory = memory or _number(root / below / "memory.max")
            processes = processes or _number(root / below / "pids.max")
        elif controllers == "memory":
            where = path
            memory = _number(root / "memory" / below / "memory.limit_in_bytes")
        elif controllers == "pids":
            processes = _number(root / "pids" / below / "pids.max")
    return CgroupLimits(where, memory, processes)


def _number(file: Path) -> int:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() and int(text) < _HUGE else 0
