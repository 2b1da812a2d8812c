"""One call of a model: what is asked, what comes back, and the closed list of ways in which it can fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from kforge.core.workload import stable_hash

_PROVIDERS_OWN = 4_096  # tokens that a provider may put around a prompt: its instructions for tools, marks of messages


class Role(StrEnum):
    """Who is asked."""

    ANALYST = "analyst"  # names one bottleneck and one next move, with the gain that it predicts
    GENERATOR = "generator"  # writes a template, or edits one
    REPAIRER = "repairer"  # mends one that did not render, build, or give the right result


@dataclass(frozen=True)
class Tool:
    """What an answer is: arguments of this tool, by a JSON schema."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Message:
    """``by``: "user" or "assistant"."""

    by: str
    text: str


@dataclass(frozen=True)
class Request:
    """A question to a model.

    ``parent``: hash of the template that it is about, "" where there is none. ``ordinal``: how many calls of this role
    about this parent went before. Both, with the role, name the call: replays find its answer by them.
    ``system``: the same for all calls of a role in a run, so that providers may cache it.
    """

    role: Role
    parent: str
    ordinal: int
    system: str
    messages: tuple[Message, ...]
    tool: Tool
    max_tokens: int  # of the answer
    idea: str = ""  # id of the idea that it is made for: on record, not shown

    @property
    def key(self) -> str:
        return f"{self.role}-{self.parent[:16] or 'root'}-{self.ordinal}"

    @property
    def hash(self) -> str:
        """Of every byte that the model is shown."""
        shown = [self.system, [[m.by, m.text] for m in self.messages], self.tool.name, self.tool.description]
        return stable_hash([*shown, dict(self.tool.schema), self.max_tokens])

    @property
    def bound(self) -> Usage:
        """At least what one answer takes, whatever the tokenizer: no token is less than a byte."""
        texts = [self.system, *(m.text for m in self.messages), self.tool.name, self.tool.description]
        shown = "".join([*texts, json.dumps(dict(self.tool.schema))])
        return Usage(input=len(shown.encode(errors="replace")) + _PROVIDERS_OWN, output=self.max_tokens)


@dataclass(frozen=True)
class Usage:
    """Tokens. ``input`` counts those neither read from nor written to the provider's cache."""

    input: int = 0
    cache_read: int = 0
    cache_written: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.input + self.cache_read + self.cache_written + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input + other.input, self.cache_read + other.cache_read,
                     self.cache_written + other.cache_written, self.output + other.output)


class CallFailureKind(StrEnum):
    """Why a call gave no answer. Closed: the loop and reports match on it."""

    MALFORMED = "malformed"  # arguments that are not JSON, or do not fit the schema
    EMPTY = "empty"
    TRUNCATED = "truncated"  # it hit max_tokens
    REFUSED = "refused"
    PROSE = "prose"  # text, and no call of the tool
    WRONG_TOOL = "wrong_tool"
    RATE_LIMITED = "rate_limited"  # still so after all retries
    UNAVAILABLE = "unavailable"  # 5xx, refused or dropped connections, after all retries
    TIMEOUT = "timeout"
    UNAUTHORISED = "unauthorised"  # no key, a wrong one, or an account that may not or cannot pay
    REJECTED = "rejected"  # the server says that the request is wrong
    BUDGET = "budget"  # it was not made: money, tokens or time would not suffice
    CANCELLED = "cancelled"
    DIVERGED = "diverged"  # a replay was asked something else than what was recorded


@dataclass(frozen=True)
class CallFailure:
    """A failed call as a value. ``usage``: what it cost nevertheless; ``assumed``: at most that, the server never said.

    ``answer``: what the model said instead of what it was asked for, as far as it came. ``attempts``: requests sent.
    """

    kind: CallFailureKind
    reason: str  # one sentence; never holds a key
    usage: Usage = Usage()
    answer: str = ""
    assumed: bool = False
    attempts: int = 0

    @property
    def final(self) -> bool:
        """Whether no other call of this run can do better."""
        return self.kind in (CallFailureKind.UNAUTHORISED, CallFailureKind.BUDGET, CallFailureKind.DIVERGED)


@dataclass(frozen=True)
class Reply:
    """An answer: arguments of the request's tool, which fit its schema. ``assumed``: as in ``CallFailure``."""

    provider: str
    model: str  # as the server names it
    arguments: Mapping[str, Any] = field(hash=False)
    text: str  # what was said beside them
    usage: Usage
    seconds: float
    attempts: int  # requests sent, retries included
    assumed: bool = False


class Provider(Protocol):
    """A way to a model. Calls may be made from several threads at once."""

    name: str

    def model_for(self, role: Role) -> str:
        """The model that calls of this role go to: what prices are looked up by."""
        ...

    def complete(self, request: Request, cancel: threading.Event) -> Reply | CallFailure:
        """Answers, however long that takes; returns soon with CANCELLED once ``cancel`` is set. Never raises for what
        a server or a network does.
        """
        ...
