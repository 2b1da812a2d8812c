"""Text to token ids and back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from kforge.models.chat import ChatTemplate, Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


class PieceStyle(StrEnum):
    """How a vocabulary spells bytes."""

    BYTE_LEVEL = "byte_level"  # every byte is one printable character (GPT-2's map)
    SENTENCE_PIECE = "sentence_piece"  # UTF-8 with U+2581 for the space, <0xNN> for single bytes


class TextEncoder(Protocol):
    """Text to ids, without a beginning-of-sequence token."""

    def encode(self, text: str, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True)
class SpecialToken:
    """A token whose text is matched before anything else; ``control`` ones only when the caller asks for it."""

    id: int
    text: str
    control: bool


class PartitioningEncoder:
    """Cuts special tokens out of the text first, longest first, then encodes each fragment alone, as llama.cpp does.

    Ids from ``size`` on are dropped. ``prefix_space``: a space goes before a fragment at the start or after a special
    token (sentence-piece files).
    """

    def __init__(self, backend: Backend, specials: Sequence[SpecialToken], size: int,
                 prefix_space: bool = False) -> None:
        self._backend, self._size, self._prefix_space = backend, size, prefix_space
        self._specials = sorted(specials, key=lambda s: -len(s.text.encode()))

    def encode(self, text: str, parse_special: bool) -> list[int]:
        fragments: list[str | int] = [text] if text else []
        for special in self._specials:
            if (parse_special or not special.control) and special.text in text:
                fragments = [part for f in fragments for part in _cut(f, special)]
        ids: list[int] = []
        after_special = True
        for fragment in fragments:
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                prefix = " " if self._prefix_space and after_special else ""
                encoded = self._backend.encode(prefix + fragment, add_special_tokens=False).ids
                ids += [i for i in encoded if i < self._size]
            after_special = isinstance(fragment, int)
        return ids


def _cut(fragment: str | int, special: SpecialToken) -> list[str | int]:
    if isinstance(fragment, int):
        return [fragment]
    parts: list[str | int] = []
    for i, piece in enumerate(fragment.split(special.text)):
        if i:
            parts.append(special.id)
        if piece:
            parts.append(piece)
    return parts


class BackendEncoder:
    """The rules of a ``tokenizer.json``, its own matching of special tokens included."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def encode(self, text: str, parse_special: bool) -> list[int]:
        backend = self._backend if parse_special else self._literal
        return backend.encode(text, add_special_tokens=False).ids

    @cached_property
    def _literal(self) -> Backend:
        """A second instance: the switch is a property of the whole tokenizer, not of a call."""
        from tokenizers import Tokenizer as Backend

        literal = Backend.from_str(self._backend.to_str())
        literal.encode_special_tokens = True
        return literal


@dataclass(frozen=True)
class Vocabulary:
    """Token texts by id, with what is needed to turn ids into bytes."""

    texts: tuple[str, ...]
    control: frozenset[int]  # shown as nothing when decoding
    literal: frozenset[int]  # user-defined tokens whose text is not in the piece alphabet
    style: PieceStyle
    prefix_space: bool = False  # encoding puts a space first, decoding takes it off

    def piece(self, token: int, show_special: bool = False) -> bytes:
        """The bytes that a token stands for."""
        text = self.texts[token]
        if token in self.control:
            return text.encode() if show_special else b""
        if token in self.literal:
            return text.encode()
        if self.style is PieceStyle.BYTE_LEVEL:
            return b"".join(BYTE_CHARACTERS.get(c) or c.encode() for c in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("\u2581", " ").encode()


class Detokenizer:
    """Ids to text as they come; holds bytes back until they are whole characters. One instance per sequence."""

    def __init__(self, vocabulary: Vocabulary, show_special: bool = False) -> None:
        self._vocabulary, self._show_special = vocabulary, show_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that became certain with this token."""
        return self._utf8.decode(self._vocabulary.piece(token, self._show_special))

    def flush(self) -> str:
        """What is left at the end: a replacement character for an unfinished one."""
        return self._utf8.decode(b"", True)


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer. ``add_bos`` is the file's own rule for the start of a sequence."""

    encoder: TextEncoder
    vocabulary: Vocabulary
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    chat: ChatTemplate | None

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """Token ids. ``add_bos`` None: as the file says. ``parse_special``: texts of control tokens are those."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            from kforge.core.errors import KforgeError

            raise KforgeError(f"The text is not valid UTF-8 at character {error.start}: convert it first.") from None
        ids = self.encoder.encode(text, parse_special)
        wanted = self.add_bos if add_bos is None else add_bos
        return [self.bos_id, *ids] if wanted and self.bos_id is not None else ids

    def decode(self, ids: Sequence[int], *, show_special: bool = False) -> str:
        """The text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
        text = b"".join(self.vocabulary.piece(i, show_special) for i in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.vocabulary.prefix_space else text

    def detokenizer(self, *, show_special: bool = False) -> Detokenizer:
        return Detokenizer(self.vocabulary, show_special)

    def encode_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True,
                    **variables: Any) -> list[int]:
        """Ids of a conversation through the model's chat template. Raises ``KforgeError`` if the model has none."""
        from kforge.core.errors import KforgeError

        if self.chat is None:
            raise KforgeError("This model's file carries no chat template; give it a plain prompt.")
        text = self.chat.render(messages, add_generation_prompt=add_generation_prompt, **variables)
        has_bos = self.bos_id is not None and text.startswith(self.vocabulary.texts[self.bos_id])
        return self.encode(text, add_bos=False if has_bos else None, parse_special=True)


def _byte_map() -> dict[str, bytes]:
    """GPT-2's printable character for each byte: itself where printable in Latin-1, else counted up from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (b for b in range(256) if b not in printable)
    return {chr(b): bytes([b]) for b in printable} | {chr(256 + i): bytes([b]) for i, b in enumerate(others)}


BYTE_CHARACTERS = _byte_map()
