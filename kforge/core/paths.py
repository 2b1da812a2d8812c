"""Where things live: shipped data, the user's cache, the registry."""

from __future__ import annotations

import os
from pathlib import Path

from kforge.core.errors import KforgeError

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(kind: str) -> Path:
    """The shipped ``templates`` or ``targets`` folder: beside the package in a checkout, inside it when installed."""
    inside = _PACKAGE / f"_{kind}"
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def require_plain(path: Path) -> None:
    """Raises KforgeError where a file that is made aside and renamed would replace a folder or a device."""
    if path.exists() and not path.is_file():
        raise KforgeError(f"{path} is {'a folder' if path.is_dir() else 'not a plain file'}: give the name of a file")


def cache_dir() -> Path:
    """User's cache (models, compiled native code): ``$KFORGE_CACHE`` or the platform's cache folder."""
    if given := os.environ.get("KFORGE_CACHE"):
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("kforge"))


def registry_path() -> Path:
    """The user's kernel database."""
    return data_dir() / "registry.db"


def store_path(registry: Path | None = None) -> Path:
    """The artifact store beside a registry (the user's by default)."""
    return (registry or registry_path()).parent / "store"


def data_dir() -> Path:
    """User's data (registry, artifact store, probed targets): ``$KFORGE_HOME`` or the platform's data folder."""
    if given := os.environ.get("KFORGE_HOME"):
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_data_dir("kforge"))
