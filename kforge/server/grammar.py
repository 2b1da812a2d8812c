"""Answers that must be JSON: a grammar says which tokens may come next."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kforge.core.errors import KforgeError
from kforge.server.errors import bad_request

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

    from kforge.models.tokenizer import Tokenizer

# Compact: a model that may put white space wherever it likes can put it there for ever.
_COMPACT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,  # what it cannot hold, it refuses
}

# Masks are made on the engine's thread, while everybody waits. Patterns of nested repetitions take 1.5 s and 240 MB
# for a single one with the library's own million; formats, long strings and enumerations need far less than this.
_LEXER_FUEL = 100_000


class GrammarConstraint:
    """A ``kforge.engine.request.Constraint``: the tokens that a grammar lets follow. One answer's, on one thread."""

    def __init__(self, matcher: LLMatcher, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab
        self._followed: list[int] = []  # tokens that the matcher has taken

    def allowed(self, tokens: Sequence[int]) -> np.ndarray:
        """bool[V]. Raises ``KforgeError`` when the grammar does not allow ``tokens``, or is too complex to follow."""
        self._follow(tokens)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._require(not self._matcher.is_error())
        return np.unpackbits(bits, count=self._vocab, bitorder="little").view(np.bool_)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Brings the matcher to ``tokens``: back where drafted tokens were given up, on where tokens are new."""
        common = len(self._followed)
        if list(tokens[:common]) != self._followed:
            pairs = zip(tokens, self._followed, strict=False)
            common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(common, len(tokens)))
            self._require(self._matcher.rollback(len(self._followed) - common))
            del self._followed[common:]
        new = list(tokens[common:])
        if new:
            taken = self._matcher.try_consume_tokens(new)
            self._followed += new[:taken]
            self._require(taken == len(new))

    def _require(self, holds: bool) -> None:
        if not holds:
            reason = _reason(self._matcher) or "a token was not allowed"
            raise KforgeError(f"The answer cannot go on by its grammar: {reason}")


class Grammars:
    """Grammars over one model's vocabulary; ``stop_ids`` are its tokens that end an answer. For any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, stop_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocab, self._stop_ids = tokenizer, vocab, tuple(stop_ids)
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None

    def constraints(self, schema: dict[str, Any], count: int) -> list[GrammarConstraint]:
        """One constraint for each of ``count`` answers: JSON by ``schema``, without white space around its tokens.

        Raises ``ApiError`` 400 for a schema that is none, or that asks for what cannot be held.
        """
        from llguidance import LLMatcher, LLParserLimits

        if not self._stop_ids:
            raise bad_request("This model's file names no token that ends an answer, so none can be held to a format.",
                              "response_format")
        tokens = self._prepared()
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
        except ValueError as error:
            raise _refused(str(error)) from None
        limits = LLParserLimits(initial_lexer_fuel=_LEXER_FUEL, verbose_errors=False)
        first = LLMatcher(tokens, grammar, log_level=0, limits=limits)
        first.compute_bitmask()  # a schema that has no instance may show only here
        if first.is_error():
            raise _refused(_reason(first))
        matchers = [first, *(first.deep_copy() for _ in range(count - 1))]
        return [GrammarConstraint(matcher, self._vocab) for matcher in matchers]

    def _prepared(self) -> LLTokenizer:
        """The vocabulary in the library's form, made when the first request needs it: that takes up to a second."""
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._lock:
            if self._tokens is None:
                known = TokenizerWrapper(_Bytes(self._tokenizer, self._vocab, self._stop_ids[0]))
                self._tokens = LLTokenizer(known, n_vocab=self._vocab, eos_token=list(self._stop_ids))
            return self._tokens


class _Bytes:
    """What the library asks of a tokenizer: the bytes of each token, which are special, and how text is encoded."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, end: int) -> None:
        vocabulary = tokenizer.vocabulary
        self._encoder = tokenizer.encoder
        self.eos_token_id = end
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [vocabulary.piece(i, show_special=True) for i in range(vocab)]
        self.special_token_ids = sorted(i for i in vocabulary.control if i < vocab)

    def __call__(self, text: bytes) -> list[int]:
        return self._encoder.encode(text.decode("utf-8", "replace"), parse_special=False)


def _refused(reason: str) -> Exception:
    return bad_request(f"The schema of 'response_format' cannot be held: {' '.join(reason.split())}", "response_format",
                       "invalid_schema")


def _reason(matcher: LLMatcher) -> str:
    """Why it cannot go on, without the placeholder for the parser's state that the library puts behind it."""
    return matcher.get_error().partition("<non-verbose/>")[0].strip()
