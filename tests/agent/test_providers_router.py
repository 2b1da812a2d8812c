"""--agent and the environment: what they mean, and what is wrong with them in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from asking import KEY

from kforge.agent.calls import Role
from kforge.agent.providers.openai_chat import Chat
from kforge.agent.providers.openai_responses import Responses
from kforge.agent.providers.router import Router
from kforge.core.errors import KforgeError


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
        monkeypatch.delenv(f"OPENAI_{name}", raising=False)


def named(router: Router) -> dict[Role, tuple[str, str]]:
    return {role: (p.name, p.model_for(role)) for role, p in router.by_role.items()}


def test_one_model_serves_every_role():
    assert named(Router.parse("anthropic:claude-x")) == {role: ("anthropic", "claude-x") for role in Role}


def test_roles_may_have_models_of_their_own():
    router = Router.parse("analyst=anthropic:big, repairer=openai:ft:small:7b,generator=anthropic:mid")
    assert named(router) == {Role.ANALYST: ("anthropic", "big"), Role.GENERATOR: ("anthropic", "mid"),
                             Role.REPAIRER: ("openai", "ft:small:7b")}
    assert named(Router.parse(str(router))) == named(router)


def test_what_has_no_role_is_for_the_rest():
    router = Router.parse("openai:v=2,analyst=anthropic:big")
    assert named(router) == {Role.ANALYST: ("anthropic", "big"), Role.GENERATOR: ("openai", "v=2"),
                             Role.REPAIRER: ("openai", "v=2")}


@pytest.mark.parametrize(("text", "part"), [
    ("", "nothing is no provider"),
    ("claude-x", "claude-x is no provider"),
    ("mistral:large", "mistral is no provider"),
    ("builtin", "leave --agent away"),
    ("anthropic", "lacks a model"),
    ("anthropic:", "lacks a model"),
    ("openai: ", "lacks a model"),
    ("replay:", "lacks a folder"),
    ("judge=openai:x", "judge is no role"),
    ("analyst=openai:x", "no model for the generator"),
    ("openai:x,openai:y", "two models for every role"),
    ("analyst=openai:x,analyst=openai:y,openai:z", "two models for analyst"),
    ("anthropic:x,", "nothing is no provider"),
])
def test_what_is_no_model_is_told(text, part):
    with pytest.raises(KforgeError, match="--agent") as told:
        Router.parse(text)
    assert part in str(told.value)
    assert "\n" not in str(told.value)


def test_a_replay_needs_a_folder_with_calls(tmp_path):
    with pytest.raises(KforgeError, match="holds no recorded calls"):
        Router.parse(f"replay:{tmp_path},and=more:of,it")


@pytest.mark.parametrize("url", ["nonsense", "ftp://models.example", "http://", "http://[::1", "http://host:port"])
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_an_address_that_is_none_is_told_at_once(provider, url, monkeypatch):
    monkeypatch.setenv(f"{provider.upper()}_BASE_URL", url)
    with pytest.raises(KforgeError, match=f"{provider.upper()}_BASE_URL is no address"):
        Router.parse(f"{provider}:m")


def test_keys_are_asked_for_before_anything_begins(monkeypatch):
    router = Router.parse("anthropic:big,repairer=openai:small")
    with pytest.raises(KforgeError, match="ANTHROPIC_API_KEY is not set"):
        router.require_keys()
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with pytest.raises(KforgeError, match="OPENAI_API_KEY is not set"):
        router.require_keys()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    router.require_keys()


@pytest.mark.parametrize(("url", "own"), [
    (None, True), ("https://api.openai.com/v1", True), ("https://eu.api.openai.com/v1", True),
    ("https://me.openai.azure.com/openai/v1", True), ("https://notopenai.com/v1", False),
    ("http://127.0.0.1:8000/v1", False), ("https://openai.com.example/v1", False),
])
def test_openai_itself_is_spoken_to_in_its_newer_protocol(url, own, monkeypatch):
    if url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
    provider = Router.parse("openai:m").provider(Role.ANALYST)
    assert isinstance(provider._dialect, Responses if own else Chat)


def test_no_sdk_is_loaded_before_the_first_call():
    code = ("import sys, kforge.cli.main, kforge.agent.caller; from kforge.agent.providers.router import Router; "
            "Router.parse('anthropic:x,repairer=openai:y'); "
            "print(*({'anthropic', 'openai', 'torch'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_look_up_path_loads_nothing_of_the_agent():
    code = ("import sys, kforge.cli.main, kforge.cli.lookup; "
            "print(*(m for m in sys.modules if m.startswith('kforge.agent')))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
