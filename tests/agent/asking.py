"""Requests and providers that the tests of the agent's calls share."""

from __future__ import annotations

import json
import threading

from fake_model_server import Answer, FakeModelServer

from kforge.agent.calls import Message, Request, Role, Tool
from kforge.agent.providers.anthropic_messages import Messages
from kforge.agent.providers.openai_chat import Chat
from kforge.agent.providers.openai_responses import Responses
from kforge.agent.providers.patience import Patience
from kforge.agent.providers.sdk import SdkProvider

KEY = "sk-test-9f8e7d6c5b4a39281706"
DIALECTS = {"anthropic": Messages, "chat": Chat, "responses": Responses}
QUICK = Patience(attempts=4, first=0.01, longest=0.03, connect=10, silence=60, seconds=120)
TOOL = Tool(
    "propose",
    "A bottleneck and a gain.",
    {
        "type": "object",
        "properties": {"bottleneck": {"type": "string"}, "gain": {"type": "number", "minimum": 0}},
        "required": ["bottleneck", "gain"],
        "additionalProperties": False,
    },
)
ARGUMENTS = {"bottleneck": "memory\nof the “weights”", "gain": 0.25}
GOOD = Answer(calls=(("propose", json.dumps(ARGUMENTS)),), text="Because.")


def request(**changes) -> Request:
    given = {"role": Role.ANALYST, "parent": "abcdef0123456789ff", "ordinal": 0, "system": "You analyse.\nBe brief.",
             "messages": (Message("user", "What is slow?\nLine two."),), "tool": TOOL, "max_tokens": 500}
    return Request(**{**given, **changes})


def provider(dialect: str, patience: Patience = QUICK) -> SdkProvider:
    return SdkProvider("some-model", DIALECTS[dialect](), patience)


def point_at(server: FakeModelServer, monkeypatch) -> None:
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def ask(dialect: str, server: FakeModelServer, monkeypatch, patience: Patience = QUICK, **changes):
    point_at(server, monkeypatch)
    return provider(dialect, patience).complete(request(**changes), threading.Event())
