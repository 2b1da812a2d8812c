"""Requests made to hurt: none costs more than its size allows, and each is refused before it reaches the engine."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from served import NAME, Served, user
from starlette.requests import Request

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.server.app import Door
from kforge.server.errors import ApiError
from kforge.server.grammar import Grammars
from kforge.server.plan import Planner
from kforge.server.schema import ChatRequest, CompletionRequest, parse

MANY = 20_000


@pytest.fixture(scope="module")
def planner(tiny: Path) -> Planner:
    return Planner(load(tiny), 2048)


def refusal(kind: type[ChatRequest] | type[CompletionRequest], body: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(kind, body.encode())
    return caught.value


@pytest.mark.parametrize(("kind", "body", "param"), [
    (CompletionRequest, f'{{"model": "m", "prompt": [{"1.5," * MANY}1.5]}}', "prompt[0]"),
    (CompletionRequest, f'{{"model": "m", "prompt": [{"[1.5]," * MANY}[]]}}', "prompt[0][0]"),
    (ChatRequest, f'{{"model": "m", "messages": [{"5," * MANY}5]}}', "messages[0]"),
    (ChatRequest, f'{{"model": "m", "messages": [{{"role": "user", "content": [{"5," * MANY}5]}}]}}',
     "messages[0].content[0]"),
    (ChatRequest, '{"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": {'
     + ",".join(f'"a{i}": 1' for i in range(MANY)) + "}}", None),
])
def test_a_body_of_nothing_but_mistakes_is_refused_at_its_first(kind: Any, body: str, param: str | None):
    tracemalloc.start()
    try:
        error = refusal(kind, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (error.status, error.param) == (400, param)
    assert len(error.message) < 500
    assert peak < 4 << 20, "described one by one, they take a thousand times the body's size"


@pytest.mark.parametrize("name", ["max_tokens", "top_k"])
def test_a_number_of_thousands_of_digits_is_out_of_range(planner: Planner, name: str):
    body = f'{{"model": "m", "prompt": "x", "{name}": {"9" * 4300}}}'
    with pytest.raises(ApiError) as caught:
        planner.completion(parse(CompletionRequest, body.encode()))
    assert (caught.value.status, caught.value.param) == (400, name)
    assert len(caught.value.message) < 500


def test_choices_of_one_prompt_share_it(planner: Planner):
    prompts = ",".join(str([65 + i] * 1500) for i in range(16))
    asked = parse(CompletionRequest, f'{{"model": "m", "prompt": [{prompts}], "n": 128, "echo": true}}'.encode())
    tracemalloc.start()
    try:
        plan = planner.completion(asked)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plan.jobs) == len(plan.echoes) == 16 * 128
    assert len({id(job.prompt) for job in plan.jobs}) == len({id(echo) for echo in plan.echoes}) == 16
    assert [job.params.seed - plan.jobs[0].params.seed for job in plan.jobs[:128]] == list(range(128))
    assert peak < 4 << 20, "2048 copies of 1500 ids are 24 MB"


def grammars(planner: Planner) -> Grammars:
    model = planner._model
    return Grammars(model.tokenizer, model.config.vocab, model.config.stop_ids)


def test_a_schema_that_has_no_instance_is_refused(planner: Planner):
    with pytest.raises(ApiError) as caught:
        grammars(planner).constraints({"$ref": "#"}, 2)
    assert (caught.value.status, caught.value.param) == (400, "response_format")
    assert len(caught.value.message) < 200 and "\n" not in caught.value.message


def test_a_pattern_of_a_million_states_does_not_hold_the_engine_up(planner: Planner):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(((a{99}){99}){99})$"}},
              "required": ["a"], "additionalProperties": False}
    known = grammars(planner)
    known.constraints({"type": "boolean"}, 1)  # which prepares the vocabulary
    answer = planner.tokenizer.encoder.encode('{"a":"a', parse_special=False)
    began = thread_time()
    with pytest.raises(KforgeError, match="too many expressions") as caught:
        (constraint,) = known.constraints(schema, 1)
        for n in range(len(answer) + 1):
            constraint.allowed(answer[:n])
    assert thread_time() - began < 0.6, "1.5 s for the first mask alone, without a limit"
    assert "\n" not in str(caught.value) and "<" not in str(caught.value)


def test_an_answer_whose_grammar_gets_too_complex_says_so_in_a_sentence(served: Served):
    properties = {f"p{i}": {"type": "integer"} for i in range(3000)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    answer = served.post("/v1/chat/completions", {
        "model": NAME, "messages": user("x"), "max_tokens": 50, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
    message = answer.json()["error"]["message"]
    assert answer.status_code in (400, 500)
    assert "\n" not in message and "<state>" not in message and len(message) < 300


def knock(door: Door, **headers: str) -> int:
    """The status of a request with these headers; 200: it may come in."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        door.check(Request({"type": "http", "method": "GET", "path": "/", "headers": raw}))
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.parametrize(("header", "status"), [
    ("Bearer secret", 200), ("bearer secret", 200), ("Bearer  secret", 200), ("secret", 401), ("Bearer", 401),
    ("Bearer Secret", 401), ("Basic secret", 401), ("Bearer secret x", 401), ("", 401), ("Bearer schl\u00fcssel", 401),
])
def test_a_key_is_shown_as_a_bearers(header: str, status: int):
    assert knock(Door("secret", True), authorization=header) == status


def test_a_key_may_have_any_characters():
    assert knock(Door("schl\u00fcssel", False), authorization="Bearer schl\u00fcssel") == 200
    assert knock(Door("schl\udcfcssel", False), authorization="Bearer schl\u00fcssel") == 401, "bytes that are no UTF-8"


@pytest.mark.parametrize(("host", "status"), [
    ("127.0.0.1", 200), ("127.0.0.1:8000", 200), ("localhost:8000", 200), ("LocalHost", 200), ("[::1]", 200),
    ("[::1]:80", 200), ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("evil.example:127.0.0.1", 421),
    ("localhost.", 421), ("", 421),
])
def test_on_loopback_only_the_machines_own_names_are_answered(host: str, status: int):
    assert knock(Door(None, True), host=host) == status
