"""Chat through the official client: every answer is what the engine says alone, bit for bit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import numpy as np
import openai
import pytest
from served import NAME, Alone, Served, user

from kforge.engine.sampling import log_probabilities

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog", "whale"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        "tame": {"type": "boolean"},
        "colours": {"type": "array", "items": {"enum": ["red", "grey"]}, "maxItems": 3},
    },
    "required": ["name", "kind", "legs", "tame", "colours"],
    "additionalProperties": False,
}


def test_a_whole_answer(client: openai.OpenAI, alone: Alone):
    said = client.chat.completions.create(model=NAME, messages=user("tell me"), temperature=0, max_tokens=24)
    prompt = alone.user("tell me")
    expected = alone.answer(prompt, max_tokens=24)
    assert said.choices[0].message.content == expected.text
    assert said.choices[0].message.role == "assistant"
    assert said.choices[0].finish_reason == "length"
    assert said.usage and (said.usage.prompt_tokens, said.usage.completion_tokens) == (len(prompt), 24)
    assert said.model == NAME and said.object == "chat.completion"


def test_a_stream_brings_the_same_text_then_its_end_then_usage(client: openai.OpenAI, alone: Alone):
    asked = {"model": NAME, "messages": user("stream"), "temperature": 0.9, "seed": 5, "max_completion_tokens": 40}
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    expected = alone.answer(alone.user("stream"), temperature=0.9, seed=5, max_tokens=40)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == expected.text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage and chunks[-1].usage.completion_tokens == 40
    assert len({c.id for c in chunks}) == 1


def test_choices_are_the_answers_of_neighbouring_seeds(client: openai.OpenAI, alone: Alone):
    asked = {"model": NAME, "messages": user("many"), "temperature": 1.2, "top_p": 0.9, "seed": 70, "max_tokens": 20}
    whole = client.chat.completions.create(**asked, n=3)
    prompt = alone.user("many")
    expected = [alone.answer(prompt, temperature=1.2, top_p=0.9, seed=70 + i, max_tokens=20).text for i in range(3)]
    assert [choice.message.content for choice in whole.choices] == expected
    assert len(set(expected)) == 3
    assert whole.usage and (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), 60)
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == expected


def test_without_a_seed_answers_differ(client: openai.OpenAI):
    said = {client.chat.completions.create(model=NAME, messages=user("x"), max_tokens=16).choices[0].message.content
            for _ in range(2)}
    assert len(said) == 2


def test_answers_do_not_depend_on_company(served: Served, alone: Alone):
    words = ["one", "two", "three four five", "six " * 40, "seven", "eight"]

    def ask(i: int) -> str | None:
        said = served.client().chat.completions.create(model=NAME, messages=user(words[i]), temperature=0.8, seed=i,
                                                       max_tokens=30 + 5 * i)
        return said.choices[0].message.content

    with ThreadPoolExecutor(len(words)) as pool:
        said = list(pool.map(ask, range(len(words))))
    assert said == [alone.answer(alone.user(word), temperature=0.8, seed=i, max_tokens=30 + 5 * i).text
                    for i, word in enumerate(words)]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_an_answer_before_them(client: openai.OpenAI, alone: Alone, stream: bool):
    prompt = alone.user("halt")
    free = alone.answer(prompt, temperature=1.0, seed=3, max_tokens=60).text
    stop = next(free[i : i + 2] for i in range(10, len(free) - 2) if free[i : i + 2].isascii())
    asked = {"model": NAME, "messages": user("halt"), "temperature": 1.0, "seed": 3, "max_tokens": 60,
             "stop": ["never said so", stop]}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert text == free[: free.find(stop)]
    assert reason == "stop"


def test_log_probabilities_are_those_of_the_logits(client: openai.OpenAI, alone: Alone):
    said = client.chat.completions.create(model=NAME, messages=user("how sure"), temperature=0.7, seed=9, max_tokens=8,
                                          logprobs=True, top_logprobs=3)
    prompt = alone.user("how sure")
    tokens = list(alone.answer(prompt, temperature=0.7, seed=9, max_tokens=8).tokens)
    rows = alone.engine.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    entries = said.choices[0].logprobs.content
    assert entries is not None and len(entries) == 8
    vocabulary = alone.engine.model.tokenizer.vocabulary
    for entry, token, row in zip(entries, tokens, rows, strict=True):
        (_, chosen), *best = log_probabilities(row, token, 3)
        assert entry.logprob == chosen
        assert bytes(entry.bytes or []) == vocabulary.piece(token, show_special=True)
        assert [top.logprob for top in entry.top_logprobs] == [value for _, value in best]
        assert [bytes(top.bytes or []) for top in entry.top_logprobs] == [
            vocabulary.piece(i, show_special=True) for i, _ in best]
        exact = row.astype(np.float64)
        assert abs(chosen - (exact[token] - np.logaddexp.reduce(exact))) < 1e-9


def test_a_streams_log_probabilities_are_the_whole_answers(client: openai.OpenAI):
    asked = {"model": NAME, "messages": user("sure?"), "temperature": 1.0, "seed": 2, "max_tokens": 12,
             "logprobs": True, "top_logprobs": 1}
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    parts = [c.choices[0].logprobs for c in client.chat.completions.create(**asked, stream=True)]
    assert whole and [entry for part in parts if part for entry in part.content or []] == whole


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_is_valid_whatever_the_model_would_say(client: openai.OpenAI, stream: bool):
    wanted = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}
    asked = {"model": NAME, "messages": user("an animal"), "response_format": wanted, "max_tokens": 400, "seed": 1}
    if stream:
        chunks = client.chat.completions.create(**asked, stream=True)
        texts = ["".join(chunk.choices[0].delta.content or "" for chunk in chunks)]
    else:
        said = client.chat.completions.create(**asked, n=3, temperature=1.5)
        assert {choice.finish_reason for choice in said.choices} == {"stop"}
        texts = [choice.message.content or "" for choice in said.choices]
        assert len(set(texts)) == 3
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_a_json_object_is_one_as_far_as_it_goes(client: openai.OpenAI):
    said = client.chat.completions.create(model=NAME, messages=user("json"), response_format={"type": "json_object"},
                                          temperature=0, max_tokens=60)
    text = said.choices[0].message.content or ""
    assert text.startswith("{")
    if said.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_content_in_parts_and_a_developers_message(client: openai.OpenAI, alone: Alone):
    from kforge.models.chat import Message

    said = client.chat.completions.create(
        model=NAME, temperature=0, max_tokens=8,
        messages=[{"role": "developer", "content": "short"},
                  {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
    prompt = alone.engine.model.tokenizer.encode_chat([Message("system", "short"), Message("user", "ab")])
    assert said.choices[0].message.content == alone.answer(prompt, max_tokens=8).text
