"""What was proven of confinement, kept until the machine boots again or anything that it rests on changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kforge.core.paths import cache_dir

_STATUS = ("CapBnd", "CapEff", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Uid")  # of the process that starts children


def remembered(what: str, programs: Sequence[Path], fields: Sequence[str],
               prove: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """``prove()``, which has these ``fields``, or what it said before under the same kernel, boot, container, rights
    and ``programs`` (paths that carry their content's hash). A cache that cannot be written costs a proof each time."""
    file = cache_dir() / "sandbox" / f"{what}-{_key(programs)}.json"
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(known, dict) and set(known) == set(fields):
            return known
    found = dict(prove())
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=file.parent, prefix=".new-")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(found, out)
        os.replace(draft, file)
    return found


def _key(programs: Sequence[Path]) -> str:
    parts = [" ".join(os.uname()), *map(str, programs)]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        parts += [line for line in status if line.partition(":")[0] in _STATUS]
        parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("user", "mnt", "pid", "net")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
