"""Artifacts of GPUs in a folder, addressed by what they were made from: written whole, verified when read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from kforge.backends.gpu.binary import BinaryError, unpack
from kforge.core import drafts
from kforge.core.errors import KforgeError
from kforge.core.trial import Artifact, CompilerReport

ABI_VERSION = 1  # of the container and of what a launcher passes


def save(folder: Path, key: str, artifact: Artifact) -> None:
    """Data first, then the entry that vouches for it. Raises KforgeError when the disk is full or read-only."""
    entry = {"sha256": artifact.hash, "report": asdict(artifact.report)}
    try:
        drafts.write_whole(folder / f"{key}.gpu", artifact.data)
        drafts.write_whole(folder / f"{key}.json", json.dumps(entry).encode())
    except OSError as error:
        raise KforgeError(f"cannot write the cache {folder}: {error.strerror}; set KFORGE_CACHE to a folder with space "
                          "that you may write to") from None


def load(folder: Path, key: str, backend: str, candidate_hash: str) -> Artifact | None:
    """The stored artifact, if it is whole: a damaged one is as good as none."""
    try:
        entry = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        data = (folder / f"{key}.gpu").read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            return None
        given = entry["report"]
        pairs = {name: tuple((str(n), int(c)) for n, c in given[name]) for name in ("instruction_mix", "resources")}
        report = CompilerReport(**{**given, **pairs, "flags": tuple(given["flags"])})
        launches = unpack(data).launches
    except (OSError, ValueError, KeyError, TypeError, BinaryError):
        return None
    return Artifact(backend, candidate_hash, data, ABI_VERSION, report, launches)
