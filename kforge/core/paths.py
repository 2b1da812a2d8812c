"""Where things live: shipped data, the user's cache, the registry."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(kind: str) -> Path:
    """The shipped ``templates`` or ``targets`` folder: beside the package in a checkout, inside it when installed."""
    inside = _PACKAGE / f"_{kind}"
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def cache_dir() -> Path:
    """User's cache (models, compiled native code): ``$KFORGE_CACHE`` or the platform's cache folder."""
    if given := os.environ.get("KFORGE_CACHE"):
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("kforge"))


def data_dir() -> Path:
    """User's data (registry, artifact store, probed targets): ``$KFORGE_HOME`` or the platform's data folder."""
    if given := os.environ.get("KFORGE_HOME"):
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_data_dir("kforge"))
