"""OpenAI's Responses protocol: the only one in which its reasoning models call tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

from kforge.agent.calls import Request, Usage
from kforge.agent.providers.access import Access
from kforge.agent.providers.dialect import count, fields, listen, words
from kforge.agent.providers.heard import Heard, Stop
from kforge.agent.providers.openai_access import OpenAIServer, sdk_for
from kforge.agent.providers.trouble import StreamFault

_ENDED = ("response.completed", "response.incomplete", "response.failed")


class Responses(OpenAIServer):
    """Nothing is stored at the provider's."""

    provider = "openai"
    optional = frozenset({"tool_choice", "parallel_tool_calls", "store"})

    def body(self, request: Request, model: str) -> dict[str, Any]:
        tool = request.tool
        function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
        body: dict[str, Any] = {
            "model": model,
            "max_output_tokens": request.max_tokens,
            "input": [{"role": m.by, "content": m.text} for m in request.messages],
            "tools": [{"type": "function", "strict": False, **function}],
            "tool_choice": {"type": "function", "name": tool.name},
            "parallel_tool_calls": False,
            "store": False,
            "stream": True,
        }
        return {**body, "instructions": request.system} if request.system else body

    async def converse(self, body: dict[str, Any], access: Access, client: httpx2.AsyncClient, heard: Heard) -> None:
        stream = await sdk_for(access, client).responses.create(**body)
        await listen(stream, heard, _take, _end)


def _take(event: Any, heard: Heard) -> None:
    if event.type == "error":
        raise StreamFault(dict(fields(event)))
    if event.type == "response.created":
        heard.model = words(event.response.model)
    elif event.type == "response.output_item.added" and event.item.type == "function_call":
        heard.call(event.output_index).name = words(event.item.name)
    elif event.type == "response.function_call_arguments.delta":
        heard.call(event.output_index).parts.append(words(event.delta))
    elif event.type == "response.output_text.delta":
        heard.text.append(words(event.delta))
    elif event.type == "response.refusal.delta":
        heard.refusal += words(event.delta)
    elif event.type in _ENDED:
        _end(fields(event.response), heard)


def _end(response: Mapping[str, Any], heard: Heard) -> None:
    """The last event, or an answer in one piece, repeats all that was said."""
    heard.model = words(response.get("model")) or heard.model
    heard.usage = _usage(response.get("usage") or {})
    if response.get("status") == "failed":
        raise StreamFault(response.get("error"))
    output = response.get("output") or []
    if output:
        heard.text, heard.refusal, heard.calls = [], "", {}
    for index, item in enumerate(output):
        if item.get("type") == "function_call":
            heard.call(index).name = words(item.get("name"))
            heard.call(index).parts.append(words(item.get("arguments")))
        for part in item.get("content") or [] if item.get("type") == "message" else []:
            heard.text.append(words(part.get("text")))
            heard.refusal += words(part.get("refusal"))
    heard.stop = _stop(response, heard)


def _stop(response: Mapping[str, Any], heard: Heard) -> Stop:
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return Stop.REFUSED if reason == "content_filter" else Stop.TRUNCATED
    return Stop.REFUSED if heard.refusal and not heard.calls else Stop.DONE


def _usage(counts: Mapping[str, Any]) -> Usage | None:
    """Prompt tokens include those that the cache gave or took; output tokens include hidden reasoning."""
    if "input_tokens" not in counts or "output_tokens" not in counts:
        return None
    details = counts.get("input_tokens_details") or {}
    read, written = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
    prompt = count(counts.get("input_tokens"))
    return Usage(max(0, prompt - read - written), read, written, count(counts.get("output_tokens")))
