"""What came over the wire so far, and what it amounts to: an answer, or one of the ways of having none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from kforge.agent.calls import CallFailureKind, Request, Usage

_MOST_QUOTED = 120  # characters of a model's words in a reason


class Stop(StrEnum):
    """Why the model stopped."""

    DONE = "done"
    TRUNCATED = "truncated"
    REFUSED = "refused"


@dataclass
class ToolCall:
    """``parts`` of its arguments, which are JSON once they are joined."""

    name: str = ""
    parts: list[str] = field(default_factory=list)


@dataclass
class Heard:
    """Filled by the thread that reads, and read by the one that waits once it gave up.

    ``begun``: the server took the request, so from here on it costs. ``prompt``: tokens of the prompt, once the server
    named them; ``usage``: of the whole call, likewise.
    """

    begun: bool = False
    model: str = ""
    text: list[str] = field(default_factory=list)
    calls: dict[int, ToolCall] = field(default_factory=dict)
    stop: Stop | None = None
    refusal: str = ""
    prompt: Usage | None = None
    usage: Usage | None = None

    def call(self, index: int) -> ToolCall:
        return self.calls.setdefault(index, ToolCall())

    @property
    def said(self) -> str:
        """Everything that the model said, for the record."""
        calls = [f"{call.name}({''.join(call.parts)})" for call in list(self.calls.values())]
        return "\n".join(part for part in ("".join(self.text), *calls) if part)

    def cost(self, request: Request) -> tuple[Usage, bool]:
        """What the call cost, and whether that is only known to be an upper bound."""
        if self.usage is not None:
            return self.usage, False
        if self.prompt is not None:
            return replace(self.prompt, output=max(request.max_tokens, self.prompt.output)), True
        return request.bound, True


@dataclass(frozen=True)
class Fault:
    """Why what was heard is no answer."""

    kind: CallFailureKind
    reason: str


def answer(heard: Heard, request: Request) -> Mapping[str, Any] | Fault:
    """The arguments of the request's tool, when they were called for and fit its schema."""
    said = "".join(heard.text).strip()
    if heard.stop is Stop.REFUSED:
        why = f": {_quoted(heard.refusal or said)}" if heard.refusal or said else ""
        return Fault(CallFailureKind.REFUSED, f"the model refuses{why}")
    if heard.stop is Stop.TRUNCATED:
        return Fault(CallFailureKind.TRUNCATED, f"the answer was cut off after {request.max_tokens} tokens")
    if not heard.calls:
        if not said:
            return Fault(CallFailureKind.EMPTY, "the answer is empty")
        return Fault(CallFailureKind.PROSE, f"text instead of a call of {request.tool.name}: {_quoted(said)}")
    call = next((c for c in heard.calls.values() if c.name == request.tool.name), None)
    if call is None:
        names = ", ".join(_quoted(c.name) for c in heard.calls.values())
        return Fault(CallFailureKind.WRONG_TOOL, f"a call of {names}, which is no tool, instead of {request.tool.name}")
    return _arguments("".join(call.parts), request)


def _arguments(text: str, request: Request) -> Mapping[str, Any] | Fault:
    try:
        arguments = json.loads(text or "{}", parse_constant=_no_constant)
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Fault(CallFailureKind.MALFORMED, "the arguments hold half a surrogate pair, which is no text")
    except (ValueError, RecursionError) as error:
        return Fault(CallFailureKind.MALFORMED, f"the arguments are no JSON: {_quoted(str(error))}")
    wrong = _misfit(arguments, request)
    return Fault(CallFailureKind.MALFORMED, wrong) if wrong else arguments


def _misfit(arguments: object, request: Request) -> str:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    if not isinstance(arguments, dict):
        return "the arguments are no JSON object"
    try:
        error = best_match(Draft202012Validator(dict(request.tool.schema)).iter_errors(arguments))
    except RecursionError:
        return "the arguments are nested too deeply"
    if error is None:
        return ""
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path).lstrip(".")
    return f"the arguments do not fit the schema{f' at {where}' if where else ''}: {_quoted(error.message)}"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_QUOTED else f"{line[:_MOST_QUOTED]} ..."
