"""OpenAI's Chat Completions protocol: what every compatible server speaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import httpx2

from kforge.agent.calls import Request, Usage
from kforge.agent.providers.access import Access
from kforge.agent.providers.dialect import count, fields, listen, words
from kforge.agent.providers.heard import Heard, Stop
from kforge.agent.providers.openai_access import OpenAIServer, sdk_for

_STOPS = {"length": Stop.TRUNCATED, "content_filter": Stop.REFUSED}


class Chat(OpenAIServer):
    """The limit of the answer goes by its old and its new name: servers know the one or the other."""

    provider = "openai"
    optional = frozenset({"tool_choice", "parallel_tool_calls", "stream_options", "max_tokens"})

    def body(self, request: Request, model: str) -> dict[str, Any]:
        tool = request.tool
        function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
        system = [{"role": "system", "content": request.system}] if request.system else []
        return {
            "model": model,
            "max_completion_tokens": request.max_tokens,
            "max_tokens": request.max_tokens,
            "messages": [*system, *({"role": m.by, "content": m.text} for m in request.messages)],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": tool.name}},
            "parallel_tool_calls": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def converse(self, body: dict[str, Any], access: Access, client: httpx2.AsyncClient, heard: Heard) -> None:
        stream = await sdk_for(access, client).chat.completions.create(**body)
        await listen(stream, heard, _take, _take_whole)
        if heard.refusal and not heard.calls:
            heard.stop = Stop.REFUSED


def _take(chunk: Any, heard: Heard) -> None:
    heard.model = words(chunk.model) or heard.model
    if chunk.usage is not None:
        heard.usage = _usage(fields(chunk.usage)) or heard.usage
    for choice in chunk.choices or []:
        if choice.delta is not None:
            heard.text.append(words(choice.delta.content))
            heard.refusal += words(choice.delta.refusal)
            _take_calls((fields(call) for call in choice.delta.tool_calls or []), heard)
        if choice.finish_reason:
            heard.stop = _STOPS.get(choice.finish_reason, Stop.DONE)


def _take_calls(calls: Iterable[Mapping[str, Any]], heard: Heard) -> None:
    for position, called in enumerate(calls):
        index, function = called.get("index"), called.get("function") or {}
        call = heard.call(index if isinstance(index, int) else position)
        call.name = call.name or words(function.get("name"))
        call.parts.append(words(function.get("arguments")))


def _take_whole(completion: Mapping[str, Any], heard: Heard) -> None:
    heard.model = words(completion.get("model"))
    choice = (completion.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    heard.text.append(words(message.get("content")))
    heard.refusal = words(message.get("refusal"))
    _take_calls(message.get("tool_calls") or [], heard)
    if reason := choice.get("finish_reason"):
        heard.stop = _STOPS.get(reason, Stop.DONE)
    heard.usage = _usage(completion.get("usage") or {})


def _usage(counts: Mapping[str, Any]) -> Usage | None:
    """Prompt tokens include those that the cache gave or took; output tokens include hidden reasoning."""
    if "prompt_tokens" not in counts or "completion_tokens" not in counts:
        return None
    details = counts.get("prompt_tokens_details") or {}
    read, written = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
    prompt = count(counts.get("prompt_tokens"))
    return Usage(max(0, prompt - read - written), read, written, count(counts.get("completion_tokens")))
