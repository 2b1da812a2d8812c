"""Why a function cannot be imported."""

from __future__ import annotations


class ImportFailure(Exception):
    """One sentence for the person who imports."""


class Unsupported(ImportFailure):
    """The function uses what no graph can say."""


class NotDynamic(Exception):
    """The function can be said for one batch only: its leading dimension is multiplied, summed over or compared."""
