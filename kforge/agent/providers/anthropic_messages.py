"""Anthropic's Messages protocol."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import httpx2

from kforge.agent.calls import Request, Usage
from kforge.agent.providers.access import Access, access, base_url
from kforge.agent.providers.dialect import NO_RETRIES, UNCOMPRESSED, count, fields, listen, words
from kforge.agent.providers.heard import Heard, Stop

_KEY, _TOKEN = "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"
_CACHED = {"cache_control": {"type": "ephemeral"}}
_STOPS = {"max_tokens": Stop.TRUNCATED, "model_context_window_exceeded": Stop.TRUNCATED, "refusal": Stop.REFUSED}


class Messages:
    """Tool and system text, the same in every call of a role, are marked for the provider's cache.

    Models that always think do not let a tool be forced: their servers refuse ``tool_choice`` by name.
    """

    provider = "anthropic"
    optional = frozenset({"tool_choice"})

    def __init__(self) -> None:
        self._base_url = base_url("ANTHROPIC_BASE_URL", "https://api.anthropic.com")

    def access(self) -> Access | str:
        headers = os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "")  # the SDK sends them along
        secrets = [line.partition(":")[2].strip() for line in headers.splitlines()]
        return access((_KEY, _TOKEN), self._base_url, secrets)

    def body(self, request: Request, model: str) -> dict[str, Any]:
        tool = request.tool
        schema = {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": request.max_tokens,
            "messages": [{"role": m.by, "content": m.text} for m in request.messages],
            "tools": [{**schema, **_CACHED}],
            "tool_choice": {"type": "tool", "name": tool.name, "disable_parallel_tool_use": True},
            "stream": True,
        }
        return {**body, "system": [{"type": "text", "text": request.system, **_CACHED}]} if request.system else body

    async def converse(self, body: dict[str, Any], access: Access, client: httpx2.AsyncClient, heard: Heard) -> None:
        import anthropic

        sdk = anthropic.AsyncAnthropic(
            api_key=access.key if access.variable == _KEY else None,
            auth_token=access.key if access.variable == _TOKEN else None,
            base_url=access.base_url,
            http_client=client,
            timeout=client.timeout,
            max_retries=NO_RETRIES,
            default_headers=UNCOMPRESSED,
            open_telemetry=False,
        )
        stream = await sdk.messages.create(**body)
        await listen(stream, heard, _take, _take_whole)


def _take(event: Any, heard: Heard) -> None:
    if event.type == "message_start":
        heard.model = words(event.message.model)
        heard.prompt = _usage(fields(event.message.usage))
    elif event.type == "content_block_start" and event.content_block.type == "tool_use":
        heard.call(event.index).name = words(event.content_block.name)
    elif event.type == "content_block_delta" and event.delta.type == "text_delta":
        heard.text.append(words(event.delta.text))
    elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
        heard.call(event.index).parts.append(words(event.delta.partial_json))
    elif event.type == "message_delta":
        if event.delta.stop_reason:
            heard.stop = _STOPS.get(event.delta.stop_reason, Stop.DONE)
        heard.refusal = words(getattr(event.delta.stop_details, "explanation", None)) or heard.refusal
        heard.usage = _usage(fields(event.usage), heard.prompt) or heard.usage  # it counts from the beginning


def _take_whole(message: Mapping[str, Any], heard: Heard) -> None:
    heard.model = words(message.get("model"))
    for index, block in enumerate(message.get("content") or []):
        if block.get("type") == "tool_use":
            heard.call(index).name = words(block.get("name"))
            heard.call(index).parts.append(json.dumps(block.get("input")))
        elif block.get("type") == "text":
            heard.text.append(words(block.get("text")))
    if reason := message.get("stop_reason"):
        heard.stop = _STOPS.get(reason, Stop.DONE)
    heard.refusal = words((message.get("stop_details") or {}).get("explanation"))
    heard.usage = _usage(message.get("usage") or {})


def _usage(counts: Mapping[str, Any], before: Usage | None = None) -> Usage | None:
    """Anthropic's counts exclude one another; what an event leaves away is as it was ``before``."""
    if "output_tokens" not in counts or (before is None and "input_tokens" not in counts):
        return None
    known = before or Usage()
    return Usage(
        input=count(counts.get("input_tokens", known.input)),
        cache_read=count(counts.get("cache_read_input_tokens", known.cache_read)),
        cache_written=count(counts.get("cache_creation_input_tokens", known.cache_written)),
        output=count(counts["output_tokens"]),
    )
