"""What to do about a registry that SQLite cannot use: one that only lacks room or waits must not be moved away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_LEAST_FREE = 1 << 17  # bytes: SQLite's log of one step


def advice(path: Path, said: str) -> str:
    """``said``: SQLite's own words."""
    if "full" in said or shutil.disk_usage(path.parent).free < _LEAST_FREE:
        return "free some space on its disk"
    if "locked" in said or "locking" in said:
        return "wait for the process that holds it, or end that"
    if "readonly" in said or not os.access(path.parent, os.W_OK):
        return "set KFORGE_HOME to a folder that you may write to"
    return "move it away or restore it"
