"""Real SDKs against a server that answers well or badly: every way of answering ends in its own kind of value."""

from __future__ import annotations

import json
import threading

import pytest
from asking import ARGUMENTS, DIALECTS, GOOD, KEY, TOOL, ask, point_at, provider, request
from fake_model_server import MODEL, Answer, FakeModelServer, Raw, Status

from kforge.agent.caller import Caller
from kforge.agent.calls import CallFailure, CallFailureKind, Message, Reply, Usage
from kforge.agent.providers.router import Router
from kforge.agent.transcripts import Transcripts, load

PROTOCOLS = pytest.mark.parametrize("dialect", list(DIALECTS))
STREAMED = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


@PROTOCOLS
@STREAMED
def test_a_call_of_the_tool_is_the_answer(dialect, streamed, monkeypatch):
    with FakeModelServer(GOOD.but(streamed=streamed)).running() as server:
        reply = ask(dialect, server, monkeypatch)
    assert isinstance(reply, Reply)
    assert reply.arguments == ARGUMENTS
    assert reply.text == "Because."
    assert reply.model == MODEL
    assert reply.provider == ("anthropic" if dialect == "anthropic" else "openai")
    assert reply.usage == Usage(input=100, cache_read=30, cache_written=7, output=20)
    assert reply.usage.total == 157
    assert (reply.attempts, reply.assumed) == (1, False)


@PROTOCOLS
def test_the_request_holds_all_that_the_model_is_to_see_and_forces_the_tool(dialect, monkeypatch):
    messages = (Message("user", "One."), Message("assistant", "Two."), Message("user", "Three."))
    with FakeModelServer(GOOD).running() as server:
        ask(dialect, server, monkeypatch, messages=messages)
    body = server.asked[0].body
    text = json.dumps(body)
    for part in ("You analyse.\\nBe brief.", "One.", "Two.", "Three.", TOOL.description, "additionalProperties"):
        assert part in text
    assert body["stream"] is True
    assert body["model"] == "some-model"
    match dialect:
        case "anthropic":
            assert body["tool_choice"]["name"] == "propose"
            assert body["max_tokens"] == 500
            assert body["system"][0]["cache_control"] == body["tools"][0]["cache_control"] == {"type": "ephemeral"}
            assert KEY in server.asked[0].headers.get("x-api-key", server.asked[0].headers.get("authorization", ""))
        case "chat":
            assert body["tool_choice"]["function"]["name"] == "propose"
            assert body["max_tokens"] == body["max_completion_tokens"] == 500
            assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "user"]
            assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
        case "responses":
            assert body["tool_choice"]["name"] == "propose"
            assert body["max_output_tokens"] == 500
            assert body["store"] is False


BAD = {
    "arguments that are no JSON": (GOOD.but(calls=(("propose", '{"bottleneck": "x", "gain": '),)),
                                   CallFailureKind.MALFORMED, "no JSON"),
    "arguments that are no object": (GOOD.but(calls=(("propose", "[1]"),)), CallFailureKind.MALFORMED, "no JSON obj"),
    "a number that JSON has not": (GOOD.but(calls=(("propose", '{"bottleneck": "x", "gain": NaN}'),)),
                                   CallFailureKind.MALFORMED, "NaN"),
    "half a surrogate pair": (GOOD.but(calls=(("propose", '{"bottleneck": "\\ud800", "gain": 1}'),)),
                              CallFailureKind.MALFORMED, "surrogate"),
    "a field too few": (GOOD.but(calls=(("propose", '{"gain": 1}'),)), CallFailureKind.MALFORMED, "'bottleneck'"),
    "a value out of range": (GOOD.but(calls=(("propose", '{"bottleneck": "x", "gain": -1}'),)),
                             CallFailureKind.MALFORMED, "at gain"),
    "arguments nested without end": (GOOD.but(calls=(("propose", "[" * 3_000 + "]" * 3_000),)),
                                     CallFailureKind.MALFORMED, "recursion"),
    "no arguments": (GOOD.but(calls=(("propose", ""),)), CallFailureKind.MALFORMED, "'bottleneck'"),
    "nothing": (Answer(), CallFailureKind.EMPTY, "empty"),
    "blanks": (Answer(text=" \n "), CallFailureKind.EMPTY, "empty"),
    "prose": (Answer(text="I think that it is\nslow."), CallFailureKind.PROSE, "I think that it is slow."),
    "another tool": (GOOD.but(calls=(("search_web", "{}"),)), CallFailureKind.WRONG_TOOL, "search_web"),
    "an answer that is cut off": (GOOD.but(stop="truncated"), CallFailureKind.TRUNCATED, "500 tokens"),
    "a refusal": (Answer(text="I won't.", stop="refused"), CallFailureKind.REFUSED, "I won't."),
    "a refusal that is explained": (Answer(stop="refused", refusal="It is against the rules."),
                                    CallFailureKind.REFUSED, "against the rules"),
}


@PROTOCOLS
@pytest.mark.parametrize("case", list(BAD))
def test_what_is_no_answer_says_why(dialect, case, monkeypatch):
    step, kind, part = BAD[case]
    with FakeModelServer(step).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert isinstance(failure, CallFailure)
    assert (failure.kind, part in failure.reason) == (kind, True), failure.reason
    assert failure.usage == Usage(100, 30, 7, 20)
    assert len(failure.reason) < 500
    assert "\n" not in failure.reason
    assert len(server.asked) == 1


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_openais_refusal_beside_an_ordinary_stop_is_one(dialect, monkeypatch):
    with FakeModelServer(Answer(refusal="No.")).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.REFUSED
    assert "No." in failure.reason


@PROTOCOLS
def test_the_bad_answer_itself_is_kept(dialect, monkeypatch):
    with FakeModelServer(GOOD.but(calls=(("propose", '{"gain": 1}'),))).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.answer == 'Because.\npropose({"gain": 1})'


@PROTOCOLS
def test_the_right_tool_counts_when_others_are_called_too(dialect, monkeypatch):
    step = GOOD.but(calls=(("think", "{}"), *GOOD.calls))
    with FakeModelServer(step).running() as server:
        reply = ask(dialect, server, monkeypatch)
    assert reply.arguments == ARGUMENTS


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_tokens_that_no_server_counts_are_assumed_to_be_all_that_could_be(dialect, monkeypatch):
    with FakeModelServer(GOOD.but(usage=None)).running() as server:
        reply = ask(dialect, server, monkeypatch)
    assert reply.assumed
    assert reply.usage == request().bound
    assert reply.usage.output == 500


@PROTOCOLS
@pytest.mark.parametrize("body", [b"<html>busy</html>\n\n", b"event: message_start\ndata: {not json\n\n", b"",
                                  b"event: message_start\ndata: [1]\n\n", b'data: {"type": "message_start"}\n\n',
                                  b'event: message_start\ndata: {"type": "message_start"}\n\n'])
def test_a_stream_of_something_else_is_no_crash(dialect, body, monkeypatch):
    with FakeModelServer(Raw(body)).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.UNAVAILABLE
    assert failure.assumed
    assert failure.usage == request().bound


@PROTOCOLS
@pytest.mark.parametrize("body", [b"[]", b"null", b"{", b'{"choices": [], "content": 7, "output": 3}'])
def test_a_whole_answer_of_something_else_is_no_crash(dialect, body, monkeypatch):
    with FakeModelServer(Raw(body, content_type="application/json")).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert isinstance(failure, CallFailure)
    assert failure.kind in (CallFailureKind.UNAVAILABLE, CallFailureKind.EMPTY)


FLOODS = {
    "anthropic": b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": '
                 b'{"type": "text_delta", "text": "' + b"la " * 20_000 + b'"}}\n\n',
    "chat": b'data: {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "' + b"la " * 20_000
            + b'"}}]}\n\n',
    "responses": b'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", "delta": "'
                 + b"la " * 20_000 + b'"}\n\n',
}


@PROTOCOLS
@pytest.mark.parametrize("flood", ["of events", "of pings", "of one line", "of a whole answer"])
def test_output_without_end_is_cut(dialect, flood, monkeypatch):
    bodies = {"of events": FLOODS[dialect], "of pings": b": ping\n\n" * 5_000, "of one line": b"x" * 50_000}
    content_type = "application/json" if flood == "of a whole answer" else "text/event-stream"
    with FakeModelServer(Raw(bodies.get(flood, b"  " * 20_000), True, content_type)).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.TRUNCATED
    assert "more than the answer may be" in failure.reason
    assert failure.assumed


@PROTOCOLS
def test_an_error_page_without_end_is_no_crash(dialect, monkeypatch):
    with FakeModelServer(Raw(b"x" * 50_000, True, "text/html", 500)).running() as server:
        failure = ask(dialect, server, monkeypatch)
    assert failure.kind is CallFailureKind.TRUNCATED
    assert failure.usage.total == 0
    assert len(server.asked) == 1


@PROTOCOLS
@STREAMED
@pytest.mark.filterwarnings("error")
def test_whatever_a_server_sends_ends_as_a_value_that_can_be_recorded(dialect, streamed, tmp_path, monkeypatch):
    steps = [GOOD.but(spoil=seed, streamed=streamed) for seed in range(30)]
    with FakeModelServer(*steps).running() as server:
        point_at(server, monkeypatch)
        caller = Caller(Router.of(provider(dialect)), transcripts=Transcripts(tmp_path), pause=0.0)
        results = [caller.call(request(ordinal=i), threading.Event()) for i in range(15)]
    assert all(isinstance(r, Reply | CallFailure) for r in results)
    assert load(tmp_path)[-1].answer == results[-1]
    assert len({getattr(r, "kind", "reply") for r in results}) > 1  # some were spoilt where it matters


REFUSALS = {
    "anthropic": ('tool_choice: type "tool" and "any" are not supported for this model.', "tool_choice"),
    "chat": ("Unsupported parameter: 'max_tokens' is not supported with this model.", "max_tokens"),
    "responses": ("Tool choices other than 'auto' are not supported with this model: tool_choice", "tool_choice"),
}


@PROTOCOLS
def test_a_field_that_the_server_does_not_take_is_left_away_from_then_on(dialect, monkeypatch):
    message, name = REFUSALS[dialect]
    with FakeModelServer(Status(400, message, kind="invalid_request_error"), GOOD).running() as server:
        point_at(server, monkeypatch)
        model = provider(dialect)
        first = model.complete(request(), threading.Event())
        second = model.complete(request(ordinal=1), threading.Event())
    assert isinstance(first, Reply), first
    assert first.attempts == 2
    assert isinstance(second, Reply)
    assert second.attempts == 1
    assert [name in asked.body for asked in server.asked] == [True, False, False]
    if name == "tool_choice":  # then the model has to be told
        assert "one call of the tool propose" in json.dumps(server.asked[1].body)


def test_the_limit_of_the_answer_stays_when_one_of_its_names_is_left_away(monkeypatch):
    with FakeModelServer(Status(400, REFUSALS["chat"][0]), GOOD).running() as server:
        ask("chat", server, monkeypatch)
    assert server.asked[1].body["max_completion_tokens"] == 500
