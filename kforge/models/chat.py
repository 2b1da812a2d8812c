"""Chat templates: untrusted Jinja from a model file, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kforge.core.errors import KforgeError


@dataclass(frozen=True)
class Message:
    role: str  # "system", "user" or "assistant"
    content: str


class ChatTemplate:
    """A model's template with the texts of its beginning- and end-of-sequence tokens.

    Globals are those that published templates expect: ``raise_exception``, ``strftime_now`` and a plain ``tojson``.
    """

    def __init__(self, source: str, origin: str, bos_token: str = "", eos_token: str = "") -> None:
        self._origin, self._tokens = origin, {"bos_token": bos_token, "eos_token": eos_token}
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        env.globals["raise_exception"] = _raise
        env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        env.filters["tojson"] = _tojson
        try:
            self._template = env.from_string(source)
        except TemplateError as error:
            raise KforgeError(f"{origin}: the chat template does not parse ({error}).") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation as text. Raises ``KforgeError`` when the template refuses it."""
        turns = [{"role": m.role, "content": m.content} for m in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=add_generation_prompt,
                                         **{**self._tokens, **variables})
        except Exception as error:  # untrusted code: it may raise anything
            raise KforgeError(f"{self._origin}: the chat template refuses this conversation ({error}).") from error


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
