"""Tokens as answers show them beside their probabilities."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kforge.models.tokenizer import Vocabulary

Ranked = Sequence[tuple[int, float]]  # (token, log probability): the chosen one, then the most probable, best first


def token_text(piece: bytes) -> str:
    """A token's bytes as text. A part of a character is spelled out, so that different tokens have different texts."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def chat_entry(vocabulary: Vocabulary, ranked: Ranked) -> dict[str, Any]:
    """One token of a chat answer's ``logprobs.content``."""
    chosen, *best = (_entry(vocabulary, token, value) for token, value in ranked)
    return {**chosen, "top_logprobs": best}


def _entry(vocabulary: Vocabulary, token: int, value: float) -> dict[str, Any]:
    piece = vocabulary.piece(token, show_special=True)
    return {"token": token_text(piece), "logprob": value, "bytes": list(piece)}


@dataclass
class CompletionLogprobs:
    """The parallel lists of a completion's ``logprobs``: add tokens, take what was added since it was last taken.

    Offsets are characters of the answer's text before a token. The first token of a prompt has no probability.
    ``echo``: the text begins with the prompt, hence without the space that some vocabularies put before a text.
    """

    vocabulary: Vocabulary
    echo: bool = False
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._characters = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._hidden_space = self.echo and self.vocabulary.prefix_space

    def add(self, token: int, ranked: Ranked | None) -> None:
        """``ranked`` None: nothing is known of this token (the first of a prompt)."""
        self.tokens.append(self._text(token))
        self.text_offset.append(self._characters)
        text = self._utf8.decode(self.vocabulary.piece(token))
        if text and self._hidden_space:
            text, self._hidden_space = text.removeprefix(" "), False
        self._characters += len(text)
        if ranked is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        best: dict[str, float] = {}
        for other, value in (*ranked[1:], ranked[0]):
            best.setdefault(self._text(other), value)
        self.token_logprobs.append(ranked[0][1])
        self.top_logprobs.append(best)

    def take(self) -> dict[str, Any]:
        taken = {"tokens": self.tokens, "token_logprobs": self.token_logprobs, "top_logprobs": self.top_logprobs,
                 "text_offset": self.text_offset}
        self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset = [], [], [], []
        return taken

    def _text(self, token: int) -> str:
        return token_text(self.vocabulary.piece(token, show_special=True))
