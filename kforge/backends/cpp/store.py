"""Folder of files addressed by what they were made from: written whole or not at all, verified when read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from kforge.core import drafts
from kforge.core.errors import KforgeError
from kforge.core.trial import Artifact, CompilerReport

ABI_VERSION = 1


def write_whole(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never a part. Raises KforgeError when the disk is full or read-only."""
    try:
        drafts.write_whole(path, content)
    except OSError as error:
        raise KforgeError(f"cannot write the cache {path.parent}: {error.strerror}; set KFORGE_CACHE to a folder with "
                          "space that you may write to") from None


def save(folder: Path, key: str, artifact: Artifact) -> None:
    """Data first, then the entry that vouches for it. Raises KforgeError."""
    entry = {"sha256": artifact.hash, "report": asdict(artifact.report)}
    write_whole(folder / f"{key}.so", artifact.data)
    write_whole(folder / f"{key}.json", json.dumps(entry).encode())


def load(folder: Path, key: str, candidate_hash: str) -> Artifact | None:
    """The stored artifact, if it is whole: a damaged entry is as good as none and will be replaced."""
    try:
        entry = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        data = (folder / f"{key}.so").read_bytes()
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            return None
        given = entry["report"]
        mix = tuple((str(name), int(count)) for name, count in given["instruction_mix"])
        resources = tuple((str(name), int(count)) for name, count in given.get("resources", ()))
        report = CompilerReport(**{**given, "flags": tuple(given["flags"]), "instruction_mix": mix,
                                   "resources": resources})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Artifact("cpp", candidate_hash, data, ABI_VERSION, report)
