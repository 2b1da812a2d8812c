"""What cannot be served is refused in OpenAI's shape, and by name."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from served import NAME, Served, user

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def chat(**more: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": user("hi"), "max_tokens": 2, **more}


def text(**more: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": "hi", "max_tokens": 2, **more}


def refused(answer: httpx2.Response, status: int, *says: str, param: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    for part in says:
        assert part in error["message"], error
    return error


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        (CHAT, chat(temperature="hot"), "temperature", "valid number"),
        (CHAT, chat(temperature=3), "temperature", "less than or equal to 2"),
        (CHAT, chat(temperature=True), "temperature", "valid number"),
        (CHAT, chat(max_tokens=0), "max_tokens", "at least 1"),
        (CHAT, chat(max_tokens=1.5), "max_tokens", "integer"),
        (CHAT, chat(max_completion_tokens=-1), "max_completion_tokens", "greater"),
        (CHAT, chat(n=0), "n", "greater"),
        (CHAT, chat(n=100), "n", "holds 7"),
        (CHAT, chat(top_p=0), "top_p", "greater than 0"),
        (CHAT, chat(stop=[""]), "stop[0]", "at least 1 character"),
        (CHAT, chat(stop=["x"] * 17), "stop", "at most 16"),
        (CHAT, chat(seed=2**70), "seed", "less than"),
        (CHAT, chat(stream="yes"), "stream", "boolean"),
        (CHAT, chat(stream_options={"include_usage": True}), "stream_options", "stream"),
        (CHAT, chat(top_logprobs=2), "top_logprobs", "logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs", "20"),
        (CHAT, chat(messages=[]), "messages", "at least 1"),
        (CHAT, chat(messages=[{"role": "robot", "content": "x"}]), "messages[0].role", "'user'"),
        (CHAT, chat(messages=[{"role": "user", "content": 5}]), "messages[0].content", "valid string; or"),
        (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
         "messages[0].content[0].type", "'text'"),
        (CHAT, chat(messages=[{"role": "user", "content": "x", "name": "bob"}]), "messages[0].name", "not supported"),
        (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools", "not supported"),
        (CHAT, chat(frequency_penalty=0.5), "frequency_penalty", "not supported"),
        (CHAT, chat(logit_bias={"5": 1}), "logit_bias", "not supported"),
        (CHAT, chat(colour="red"), "colour", "Unknown parameter"),
        (CHAT, chat(response_format={"type": "xml"}), "response_format", "json_schema"),
        (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}),
         "response_format", "cannot be held"),
        (CHAT, {"model": NAME}, "messages", "Missing required parameter"),
        (CHAT, {"messages": user("hi")}, "model", "Missing required parameter"),
        (CHAT, chat(messages=user("word " * 3000)), "messages", "at most 2047"),
        (CHAT, chat(max_tokens=2047), "max_tokens", "holds at most 2048"),
        (CHAT, [1, 2], None, "Invalid body"),
        (TEXT, text(best_of=3), "best_of", "not supported"),
        (TEXT, text(suffix="end"), "suffix", "not supported"),
        (TEXT, text(prompt=[]), "prompt", "empty"),
        (TEXT, text(prompt=[5000]), "prompt", "outside 0 .. 1023"),
        (TEXT, text(prompt=[1, "a"]), "prompt[1]", "integer"),
        (TEXT, text(prompt=["a"] * 200), "prompt", "at most 128"),
        (TEXT, text(prompt=[[1], []]), "prompt", "empty"),
        (TEXT, text(max_tokens=0), "max_tokens", "echo"),
        (TEXT, text(prompt="word " * 3000), "prompt", "at most 2047"),
        (TEXT, text(logprobs=True), "logprobs", "integer"),
    ],
)
def test_a_request_that_cannot_be_names_its_parameter(served: Served, path: str, body: Any, param: str, says: str):
    error = refused(served.post(path, body), 400, says, param=param)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("neutral", [
    {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "user": "me", "metadata": {"a": "b"}},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "store": False, "service_tier": "auto"},
    {"n": None, "seed": None, "stop": None, "temperature": None, "top_p": None, "response_format": {"type": "text"}},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "refusal": None,
                                                     "tool_calls": None, "annotations": []},
                  {"role": "user", "content": "z", "type": "text"}]},
])
def test_parameters_that_ask_for_nothing_are_taken(served: Served, neutral: dict[str, Any]):
    assert served.post(CHAT, chat(**neutral)).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\xff\xfe", b'{"model": "tiny", "messages": [{]}',
                                  b"[" * 5000, b'{"model": "\\ud800"}', b'{"model": "tiny", "temperature": NaN}'])
def test_a_body_that_is_no_json(served: Served, body: bytes):
    answer = httpx2.post(served.url + CHAT, content=body, headers={"content-type": "application/json"}, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_what_is_refused_before_the_body_is_looked_at(served: Served):
    refused(httpx2.post(served.url + CHAT, content=b"model=tiny", timeout=60), 415, "application/json")
    huge = b'{"model": "' + b"x" * (9 << 20) + b'"}'
    refused(httpx2.post(served.url + CHAT, content=huge, headers={"content-type": "application/json"}, timeout=60), 413)

    def parts():
        for _ in range(9):
            yield b"x" * (1 << 20)

    sent = httpx2.post(served.url + CHAT, content=parts(), headers={"content-type": "application/json"}, timeout=60)
    refused(sent, 413, "longer than")
    refused(served.post(CHAT, chat(), headers={"Host": "evil.example"}), 421, "127.0.0.1")


def test_what_is_not_there(served: Served, client: openai.OpenAI):
    refused(served.post(CHAT, chat(model="gpt-5")), 404, "gpt-5", NAME, param="model")
    refused(served.post("/v1/embeddings", {}), 404)
    refused(httpx2.get(served.url + CHAT, timeout=60), 405)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("other")


def test_the_client_raises_its_own_errors(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=user("x"), presence_penalty=1)
    assert (caught.value.param, caught.value.code) == ("presence_penalty", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=user("long " * 3000), stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_models_and_health(served: Served, client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "kforge"
    assert httpx2.get(served.url + "/health", timeout=60).json() == {"status": "ok"}
