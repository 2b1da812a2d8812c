"""Sandbox runner, cases, check, timing, judge: is a candidate right, and is it faster?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kforge.harness.harness import Harness

__all__ = ["Harness"]


def __getattr__(name: str) -> object:
    """Imported when asked for: the backends use ``kforge.harness.sandbox``, and the harness uses the backends."""
    if name == "Harness":
        from kforge.harness.harness import Harness

        return Harness
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
