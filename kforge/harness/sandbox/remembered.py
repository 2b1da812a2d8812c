"""What was proven of confinement, kept until the machine boots again or anything that it rests on changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kforge.core.drafts import write_whole
from kforge.core.paths import cache_dir

_STATUS = ("CapBnd", "CapEff", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Uid")  # of the process that starts children


def remembered(what: str, programs: Sequence[Path], prove: Callable[[], Mapping[str, Any]],
               whole: Mapping[str, Any]) -> dict[str, Any]:
    """``prove()``, or what it said before under the same kernel, boot, container, rights and ``programs`` (paths that
    carry their content's hash). Only what agrees with ``whole`` is kept: what fails may hold another time. A cache
    that cannot be written costs a proof each time."""
    file = cache_dir() / "sandbox" / f"{what}-{_key(programs)}.json"
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(known, dict) and whole.items() <= known.items():
            return known
    found = dict(prove())
    if not whole.items() <= found.items():
        return found
    with contextlib.suppress(OSError):
        write_whole(file, json.dumps(found).encode())
    return found


def _key(programs: Sequence[Path]) -> str:
    parts = [" ".join(os.uname()), *map(str, programs)]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        parts += [line for line in status if line.partition(":")[0] in _STATUS]
        parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("user", "mnt", "pid", "net")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
