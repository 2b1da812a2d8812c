"""From a checked request to jobs for the engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kforge.core.errors import KforgeError
from kforge.engine.request import SamplingParams
from kforge.models.chat import Message
from kforge.models.model import Model
from kforge.models.tokenizer import Tokenizer
from kforge.server.errors import ApiError, bad_request
from kforge.server.exchange import Job
from kforge.server.grammar import Grammars
from kforge.server.schema import ChatRequest, CompletionRequest, JsonObjectFormat, JsonSchemaFormat

_DEFAULT_COMPLETION = 16  # tokens, as OpenAI's interface has it
_MOST_PROMPTS = 128


@dataclass(frozen=True)
class Plan:
    """Jobs by choice: those of the first prompt first. ``echoes``: what each choice begins with, where that was asked
    for. ``empty``: nothing is generated for the client (the engine's one token stays unseen)."""

    jobs: tuple[Job, ...]
    prompt_tokens: int  # each prompt once, however many answers it gets
    echoes: tuple[str, ...] = ()
    empty: bool = False


class Planner:
    """Knows the model: its tokenizer, its limits, its grammars. For any thread.

    ``context``: positions that a prompt with its answer may take.
    """

    def __init__(self, model: Model, context: int) -> None:
        self._context = context
        self._model = model
        self._grammars = Grammars(model.tokenizer, model.config.vocab, model.config.stop_ids)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.tokenizer

    def chat(self, request: ChatRequest) -> Plan:
        """Raises ``ApiError`` for what cannot be served."""
        messages = [Message("system" if m.role == "developer" else m.role, m.text) for m in request.messages]
        try:
            prompt = self.tokenizer.encode_chat(messages)
        except KforgeError as error:
            raise bad_request(str(error), "messages") from None
        name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        wanted = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
        params = self._params(request, self._room(prompt, wanted, None, "messages", name))
        if request.logprobs:
            params = replace(params, logprobs=request.top_logprobs or 0)
        jobs = _jobs(prompt, params, request.n or 1)
        schema = _schema(request)
        if schema is not None:
            constraints = self._grammars.constraints(schema, len(jobs))
            jobs = [Job(job.prompt, replace(job.params, constraint=constraint))
                    for job, constraint in zip(jobs, constraints, strict=True)]
        return Plan(tuple(jobs), len(prompt))

    def completion(self, request: CompletionRequest) -> Plan:
        """Raises ``ApiError`` for what cannot be served."""
        if request.max_tokens == 0 and not request.echo:
            raise bad_request("'max_tokens' 0 asks for nothing without 'echo'.", "max_tokens")
        jobs: list[Job] = []
        echoes: list[str] = []
        prompts = self._prompts(request)
        for text, prompt in prompts:
            wanted = None if request.max_tokens is None else max(request.max_tokens, 1)
            params = self._params(request, self._room(prompt, wanted, _DEFAULT_COMPLETION, "prompt", "max_tokens"))
            if request.logprobs is not None:
                params = replace(params, logprobs=request.logprobs)
                if request.echo:
                    params = replace(params, prompt_logprobs=request.logprobs)
            several = _jobs(prompt, params, request.n or 1)
            jobs += several
            if request.echo:
                echoes += [self.tokenizer.decode(prompt) if text is None else text] * len(several)
        return Plan(tuple(jobs), sum(len(prompt) for _, prompt in prompts), tuple(echoes), request.max_tokens == 0)

    def _prompts(self, request: CompletionRequest) -> list[tuple[str | None, list[int]]]:
        """Texts (None where ids were given) and ids of every prompt."""
        given = request.prompt
        several: Sequence[str | list[int]]
        if isinstance(given, str):
            several = [given]
        elif not given or isinstance(given[0], int):
            several = [given]  # type: ignore[list-item]  # a single list of ids
        else:
            several = given
        if len(several) > _MOST_PROMPTS:
            raise bad_request(f"'prompt' holds {len(several)} prompts; at most {_MOST_PROMPTS} are possible.", "prompt")
        return [(p, self._encoded(p)) if isinstance(p, str) else (None, self._known(p)) for p in several]

    def _encoded(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode(text)
        except KforgeError as error:
            raise bad_request(str(error), "prompt") from None

    def _known(self, ids: list[int]) -> list[int]:
        vocab = self._model.config.vocab
        if ids and max(ids) >= vocab:
            raise bad_request(f"'prompt' has token ids outside 0 .. {vocab - 1}.", "prompt")
        return ids

    def _room(self, prompt: Sequence[int], wanted: int | None, default: int | None, param: str, limit: str) -> int:
        """Tokens that the answer may have: ``wanted``, or without a wish ``default`` or all that fit."""
        room = self._context - len(prompt)
        if not prompt:
            raise bad_request("The prompt is empty: give at least one token.", param)
        if room < 1:
            raise _too_long(f"The prompt has {len(prompt)} tokens, but this server takes at most {self._context - 1} "
                            "and one more to answer.", param)
        if wanted is not None and wanted > room:
            whole = len(prompt) + wanted
            raise _too_long(f"{len(prompt)} tokens of the prompt and {wanted} of the answer are {whole}, but this "
                            f"server holds at most {self._context}: ask for at most {room}, or shorten the prompt.",
                            limit)
        if wanted is not None:
            return wanted
        return room if default is None else min(default, room)

    def _params(self, request: ChatRequest | CompletionRequest, max_tokens: int) -> SamplingParams:
        """Temperature is 1 and the seed drawn where the request does not say, as OpenAI's interface has it."""
        return SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_k=request.top_k or 0,
            top_p=1.0 if request.top_p is None else request.top_p,
            min_p=request.min_p or 0.0,
            seed=secrets.randbits(63) if request.seed is None else request.seed,
            stop=request.stops,
            max_tokens=max_tokens,
        )


def _jobs(prompt: Sequence[int], params: SamplingParams, count: int) -> list[Job]:
    """Choices of one prompt. Choice i has the seed plus i: one answer of many can be had again alone."""
    shared = tuple(prompt)
    return [Job(shared, replace(params, seed=params.seed + i)) for i in range(count)]


def _schema(request: ChatRequest) -> dict[str, Any] | None:
    match request.response_format:
        case JsonSchemaFormat(json_schema=wanted):
            return wanted.schema_
        case JsonObjectFormat():
            return {"type": "object"}
    return None


def _too_long(message: str, param: str) -> ApiError:
    return bad_request(message, param, "context_length_exceeded")
