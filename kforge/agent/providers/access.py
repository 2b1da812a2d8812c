"""Who is called with which key. Keys come from the environment, and no text of kforge's ever holds one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kforge.core.errors import KforgeError

_SHORTEST = 8  # characters of a secret, or of a part of one, that give something away
_LONGEST_REASON = 400
_HIDDEN = "[hidden]"


@dataclass(frozen=True)
class Access:
    """A server with the key for it. ``variable``: of the environment, where the key was."""

    variable: str
    key: str = field(repr=False)
    base_url: str = field(repr=False)
    others: tuple[str, ...] = field(default=(), repr=False)  # secrets beside the key, sent by the SDK on its own

    @property
    def server(self) -> str:
        """Its scheme, host and port: what may be shown."""
        return server_of(self.base_url)

    def hide(self, text: str) -> str:
        """The text without any secret, whole or in parts."""
        for secret in (self.key, *self.others):
            text = _without(text, secret)
        return text

    def words(self, text: str) -> str:
        """A model's words without the whole key (a part of it may stand for something else), and as valid Unicode."""
        sound = text.encode(errors="replace").decode()
        return sound.replace(self.key, _HIDDEN) if len(self.key) >= _SHORTEST else sound

    def reason(self, text: str) -> str:
        """What a server said, on one line, short, and without secrets."""
        line = " ".join(self.hide(self.words(text)).split())
        return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]} ..."


def access(variables: Sequence[str], base_url: str, others: Sequence[str] = ()) -> Access | str:
    """From the first of ``variables`` that is set; a sentence where none is, or what it holds can be no key."""
    for variable in variables:
        if key := os.environ.get(variable, "").strip():
            if not (key.isascii() and key.isprintable() and " " not in key):
                return f"{variable} holds characters that no key has: set it again"
            secrets = (*others, urlsplit(base_url).password or "")
            return Access(variable, key, base_url, tuple(s for s in secrets if len(s) >= _SHORTEST))
    local = " (a server that needs no key takes any text)" if server_of(base_url).startswith("http:") else ""
    return f"{variables[0]} is not set{local}: put a key for {server_of(base_url)} there"


def base_url(variable: str, default: str) -> str:
    """The server's address from the environment. Raises KforgeError for what is none."""
    given = os.environ.get(variable) or default
    try:
        parts = urlsplit(given)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise KforgeError(f"{variable} is no address of a server: give one such as {default}")
    return given


def server_of(url: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def _without(text: str, secret: str) -> str:
    """Runs of at least eight characters of the secret are hidden, the longest first: servers like to quote a part."""
    if len(secret) < _SHORTEST:
        return text
    start = 0
    while start + _SHORTEST <= len(text):
        length = _SHORTEST
        if text[start : start + length] not in secret:
            start += 1
            continue
        while start + length < len(text) and text[start : start + length + 1] in secret:
            length += 1
        text = text[:start] + _HIDDEN + text[start + length :]
        start += len(_HIDDEN)
    return text
