"""Which way of guessing an engine's options ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kforge.core.errors import KforgeError
from kforge.engine.draft_model import DraftModel
from kforge.engine.drafting import Speculation

if TYPE_CHECKING:
    from kforge.models.model import Model


def guessing(name: str | None, draft_model: Model | None = None) -> Speculation | DraftModel | None:
    """None: no guesses. ``KforgeError`` for a way of guessing that there is not, or that lacks what it needs."""
    if name not in (None, "ngram", "draft"):
        raise KforgeError(f"There is no speculation '{name}': use ngram, or draft with a draft model, or leave it out.")
    if name == "draft" and draft_model is None:
        raise KforgeError("Guessing with a draft model needs one: name a smaller model with the same vocabulary "
                          "(draft_model, --draft-model).")
    if name != "draft" and draft_model is not None:
        raise KforgeError("A draft model is named, but not asked for guesses: say speculate='draft' "
                          "(--speculate draft), or leave it out.")
    if draft_model is not None:
        return DraftModel(draft_model)
    return Speculation() if name == "ngram" else None
