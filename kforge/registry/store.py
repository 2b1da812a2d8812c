"""Content-addressed files: artifacts and sources, verified by hash before they are used."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kforge.core.drafts import write_whole
from kforge.core.errors import KforgeError


class Store:
    """Files below ``root``, named by the SHA-256 of their bytes."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Keep ``data`` and return its hash; atomic, idempotent, repairs a damaged copy."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return digest
        try:
            write_whole(path, data, durable=True)
        except OSError as error:
            raise KforgeError(
                f"cannot write {path}: {error.strerror}; free space or fix the folder's rights"
            ) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes, or a KforgeError that says what is wrong with the file."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise KforgeError(
                f"artifact {path} cannot be read ({error.strerror}); run: kforge kernels verify"
            ) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise KforgeError(f"artifact {path} does not have the hash that it is named by; run: kforge kernels verify")
        return data

    def digests(self) -> list[str]:
        return sorted(p.name for p in self.root.glob("[0-9a-f][0-9a-f]/*") if not p.name.startswith("."))

    def remove(self, digest: str) -> int:
        """Delete one file and return the bytes freed."""
        path = self.path(digest)
        size = path.stat().st_size
        path.unlink()
        return size
