"""A request's next token out of a row of logits, where the most probable one alone is not all that is wanted."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import NamedTuple

import numpy as np

from kforge.core.errors import KforgeError
from kforge.engine.rejection import Guess, verified
from kforge.engine.request import Constraint, Logprobs, Sequence
from kforge.engine.sampling import distribution, log_probabilities, sample


class Choice(NamedTuple):
    token: int
    logprobs: Logprobs | None  # where they were asked for


class NoTokenError(KforgeError):
    """A request's constraint raised or allowed nothing, or its logits say nothing: it can't go on, others can."""


def choose(logits: np.ndarray, sequence: Sequence, guess: Guess | None = None) -> Choice:
    """The sequence's next token by its logits f32[V], if its constraint allows any. Raises ``NoTokenError``, also where
    the model has overflown: a NaN among the logits, or an infinity as their largest.

    ``guess``: what was guessed in its place, for rejection sampling; the token is the same without it where the request
    does not sample, and another draw from the same distribution where it does.
    """
    params = sequence.params
    if not np.isfinite(logits.max()):
        raise NoTokenError("The model's logits for this request are no numbers: its activations left their range.")
    allowed = None
    if params.constraint is not None:
        allowed = _allowed(params.constraint, sequence.generated, len(logits))
    if guess is None or params.greedy:
        token = sample(logits, params, sequence.wanted, allowed)
    else:
        token = verified(distribution(logits, params, allowed), guess, params.seed, sequence.wanted)
    return Choice(token, None if params.logprobs is None else log_probabilities(logits, token, params.logprobs))


def score_prompt(logits: np.ndarray, start: int, sequence: Sequence) -> None:
    """Goes on with ``sequence.prompt_rows`` from f32[n, V], the logits after its tokens ``start`` .. ``start + n - 1``.

    What is known already is left alone: a preempted prompt is computed again, to the same bits.
    """
    top = sequence.params.prompt_logprobs or 0
    for at in range(max(start, len(sequence.prompt_rows)), min(start + len(logits), sequence.prompt_length - 1)):
        sequence.prompt_rows.append(log_probabilities(logits[at - start], sequence.tokens[at + 1], top))


def _allowed(constraint: Constraint, answer: Tokens[int], vocab: int) -> np.ndarray | None:
    """bool[n], n <= ``vocab``: what may follow; None: anything."""
    try:
        mask = constraint.allowed(answer)
        allowed = None if mask is None else np.asarray(mask, np.bool_)[:vocab]
    except Exception as error:
        raise NoTokenError(f"The constraint on this request's tokens failed: {error}") from error
    if allowed is not None and not allowed.any():
        raise NoTokenError("The constraint on this request's tokens allows none, not even the end token.")
    return allowed
