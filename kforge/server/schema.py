"""What a request may say: bodies of the two generating endpoints, checked by pydantic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kforge.server.errors import ApiError, bad_request

MOST_CHOICES = 128
MOST_LOGPROBS = 20
MOST_STOPS = 16
MOST_STOP = 1024  # characters of one stop string
_MOST_TOKENS = 2**31 - 1  # more than any model holds, and few enough digits to be told
_MOST_MISTAKES = 100  # that are looked at one by one

# Parameters of OpenAI's interface that are not implemented, with the values that ask for nothing (null always does).
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
# Who asks, and for what cache: nothing that an answer depends on.
_IGNORED = frozenset({"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"})
# Fields that answers carry and clients send back, or that clients add: empty ones ask for nothing.
_MESSAGE_NEUTRAL: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "tool_calls": ([],),
    "type": ("text", "message"),
}

Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP)]
# Long lists fail at their first mistake: one of nothing else would be described at a thousand times its size.
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
Count = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]


class _Strict(BaseModel):
    """No value is converted, no field is dropped in silence."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against observers of encrypted traffic, of which there is none


class TextFormat(_Strict):
    type: Literal["text"]


class JsonObjectFormat(_Strict):
    type: Literal["json_object"]


class JsonSchema(_Strict):
    """``strict`` changes nothing: the schema always holds."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(_Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _Request(_Strict):
    """What both endpoints take. ``top_k`` and ``min_p`` go beyond OpenAI's interface."""

    model_config = ConfigDict(extra="allow")

    model: str
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Count | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(_Request):
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[Count, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = (
        None
    )


class CompletionRequest(_Request):
    """``prompt``: a text, token ids, or several of either."""

    prompt: str | Tokens | Annotated[list[str], Field(fail_fast=True)] | Annotated[list[Tokens], Field(fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool | None = None


AnyRequest = TypeVar("AnyRequest", bound=_Request)


def parse(kind: type[AnyRequest], body: bytes) -> AnyRequest:
    """The request in ``body``. Raises ``ApiError`` 400 that names the parameter which is wrong, unknown or not
    supported."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MOST_MISTAKES:
            raise bad_request(f"The body has {error.error_count()} mistakes.", code="invalid_value") from None
        raise _explained(error.errors(include_url=False, include_input=False)) from None
    _require_supported(request)
    return request


def _require_supported(request: _Request) -> None:
    for name, value in (request.model_extra or {}).items():
        if name in _IGNORED or value is None:
            continue
        if name not in _UNSUPPORTED:
            raise bad_request(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
        if value not in _UNSUPPORTED[name]:
            raise bad_request(f"'{name}' is not supported by this server.", name, "unsupported_parameter")
    if request.stream_options is not None and not request.stream:
        raise bad_request("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    if isinstance(request, ChatRequest):
        if request.max_tokens == 0:
            raise bad_request("'max_tokens' must be at least 1.", "max_tokens")
        if request.top_logprobs is not None and not request.logprobs:
            raise bad_request("'top_logprobs' is only allowed when 'logprobs' is true.", "top_logprobs")
        for at, message in enumerate(request.messages):
            for name, value in (message.model_extra or {}).items():
                if value is not None and value not in _MESSAGE_NEUTRAL.get(name, ()):
                    where = f"messages[{at}].{name}"
                    raise bad_request(f"'{where}' is not supported by this server.", where, "unsupported_parameter")


def _explained(errors: Sequence[Any]) -> ApiError:
    """What is wrong furthest inside (a union reports all its alternatives), with all that would be right there."""
    worst = max(errors, key=lambda error: len(error["loc"]))
    param = _param(worst["loc"])
    match worst["type"]:
        case "json_invalid":
            return bad_request(f"The body is not valid JSON: {worst['ctx']['error']}.", code="invalid_json")
        case "missing":
            return bad_request(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        case "extra_forbidden":
            return bad_request(f"Unknown parameter: '{param}'.", param, "unknown_parameter")
    reasons = dict.fromkeys(error["msg"] for error in errors if _param(error["loc"]) == param)
    where = f"Invalid '{param}'" if param else "Invalid body"
    return bad_request(f"{where}: {'; or '.join(reasons)}.", param or None, "invalid_value")


def _param(location: Sequence[int | str]) -> str:
    """``messages[0].content`` of pydantic's path, without the alternatives of a union that it passes through."""
    text = ""
    previous: int | str | None = None
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int") and part != previous:
            text += f".{part}" if text else part
        previous = part
    return text
