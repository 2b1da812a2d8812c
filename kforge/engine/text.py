"""Text of a sequence as it grows, cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Pieces(Protocol):
    """What turns ids into whole characters, holding unfinished ones back (``kforge.models.tokenizer.Detokenizer``)."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class TextStream:
    """Complete characters only, and never a part of a stop string.

    Text that may be the beginning of a stop string waits until it is clear that it is not.
    """

    def __init__(self, pieces: Pieces, stop: Sequence[str] = ()) -> None:
        self._pieces = pieces
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False  # a stop string is complete: what came before it was handed out, nothing follows

    def push(self, token: int) -> str:
        """Adds a token; returns what became certain."""
        return self._release(self._pieces.push(token))

    def end(self) -> str:
        """What was still held back, at the end of the sequence."""
        text = self._release(self._pieces.flush())
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return text
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        self.stopped = bool(found)
        at = min(found) if found else len(self._held) - max(_overlap(self._held, stop) for stop in self._stop)
        text, self._held = self._held[:at], "" if found else self._held[at:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a true beginning of ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
