"""What is exported: a new folder, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kforge.core.drafts import draft_folder
from kforge.core.errors import KforgeError, sentence_of


def require_new(folder: Path) -> None:
    """Raises KforgeError for one that is there and not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise KforgeError(f"{folder} exists and is not an empty folder: give another")


def write(folder: Path, files: Mapping[Path, bytes]) -> None:
    """``files``: by path below ``folder``. Raises KforgeError."""
    with new_folder(folder) as draft:
        for place, data in files.items():
            path = draft / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A draft, which is ``folder`` once the block has ended well. Raises KforgeError."""
    require_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with draft_folder(folder.parent) as draft:
            yield draft
            draft.chmod(0o755)
            os.rename(draft, folder)
    except OSError as error:
        raise KforgeError(f"cannot write {folder}: {sentence_of(error)}") from error
