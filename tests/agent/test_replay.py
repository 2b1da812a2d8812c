"""A recorded run asked again: the same answers for the same questions, and the first difference for others."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from asking import TOOL, request
from test_transcripts import FAILURE, REPLY, transcript

from kforge.agent.caller import Caller
from kforge.agent.calls import CallFailureKind, Message, Role
from kforge.agent.providers.replay import Replay
from kforge.agent.providers.router import Router
from kforge.agent.transcripts import Transcripts
from kforge.core.errors import KforgeError

NEVER = threading.Event()
SECOND = replace(REPLY, text="the second")


@pytest.fixture
def recorded(tmp_path) -> Replay:
    files = Transcripts(tmp_path)
    files.write(transcript())
    files.write(transcript(request=request(ordinal=1), answer=FAILURE, first=None))
    files.write(transcript(request=request(role=Role.GENERATOR), answer=SECOND, model="other"))
    return Replay(tmp_path)


def test_answers_and_failures_come_back_by_role_parent_and_ordinal(recorded):
    assert recorded.complete(request(role=Role.GENERATOR), NEVER) == SECOND
    assert recorded.complete(request(), NEVER) == REPLY
    assert recorded.complete(request(ordinal=1), NEVER) == FAILURE
    assert recorded.complete(request(), NEVER) == REPLY
    assert recorded.model_for(Role.GENERATOR) == "other"


def test_it_needs_neither_budget_nor_files(recorded):
    caller = Caller(Router.of(recorded))
    assert caller.call(request(), NEVER) == REPLY
    assert caller.call(request(ordinal=1), NEVER) == FAILURE  # and asks no second time


def test_it_is_a_model_on_the_command_line(tmp_path, recorded):
    router = Router.parse(f"replay:{tmp_path}")
    assert router.provider(Role.ANALYST).complete(request(), NEVER) == REPLY
    router.require_keys()


@pytest.mark.parametrize(("asked", "parts"), [
    (request(system="You analyse.\nBe long."), ["line 2 of the system text", "'Be long.'", "'Be brief.'"]),
    (request(messages=(Message("user", "What is slow?\nLine 2."),)), ["line 2 of message 1 (user)", "Line two."]),
    (request(messages=(Message("user", "What is slow?"),)), ["Line two."]),
    (request(messages=(Message("user", "What is slow?\nLine two.\nMore."),)), ["line 3 of message 1", "'More.'"]),
    (request(messages=(*request().messages, Message("assistant", "So?"))), ["message 2 (assistant)", "So?"]),
    (request(tool=replace(TOOL, name="suggest")), ["the tool's name", "'suggest'", "'propose'"]),
    (request(tool=replace(TOOL, schema={**TOOL.schema, "required": []})), ["the tool's schema"]),
    (request(max_tokens=501), ["max_tokens", "'501'", "'500'"]),
])
def test_another_prompt_is_told_by_its_first_other_line(recorded, asked, parts):
    failure = recorded.complete(asked, NEVER)
    assert failure.kind is CallFailureKind.DIVERGED
    assert failure.final
    for part in parts:
        assert part in failure.reason
    assert "\n" not in failure.reason


def test_a_call_that_was_never_made_is_told(recorded):
    failure = recorded.complete(request(ordinal=2), NEVER)
    assert failure.kind is CallFailureKind.DIVERGED
    assert "analyst-abcdef0123456789-2" in failure.reason
    assert "2 of this analyst" in failure.reason


def test_of_two_answers_to_one_question_the_last_counts(tmp_path):
    files = Transcripts(tmp_path)
    files.write(transcript(answer=FAILURE))
    files.write(transcript(answer=SECOND))
    assert Replay(tmp_path).complete(request(), NEVER) == SECOND


def test_a_stopped_replay_ends(recorded):
    stopped = threading.Event()
    stopped.set()
    assert recorded.complete(request(), stopped).kind is CallFailureKind.CANCELLED


def test_a_folder_without_calls_is_told(tmp_path):
    with pytest.raises(KforgeError, match="holds no recorded calls"):
        Replay(tmp_path / "nowhere")
