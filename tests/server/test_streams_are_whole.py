"""The parts of a stream are the whole answer: text, ends, log probabilities and usage, with all asked for at once."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from served import NAME, Alone, user

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def stops_of(alone: Alone, prompt: list[int], seeds: range, tokens: int) -> list[str]:
    """Pieces of these answers that lie across two tokens each, where an answer is long enough."""
    found = []
    for seed in seeds:
        pieces = [output.text for output in alone.outputs(prompt, temperature=1.0, seed=seed, max_tokens=tokens)]
        later = range(min(6, len(pieces)), len(pieces) - 1)
        found += [pieces[at][-1] + pieces[at + 1][0] for at in later if pieces[at] and pieces[at + 1]][:1]
    assert found
    return found


def test_of_chats(client: openai.OpenAI, alone: Alone):
    stops = stops_of(alone, alone.user("go on"), range(40, 42), 30)
    asked: dict[str, Any] = {"model": NAME, "messages": user("go on"), "n": 3, "seed": 40, "max_tokens": 30,
                             "temperature": 1.0, "stop": stops, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    text, ends = ["", "", ""], [None] * 3
    entries: list[list[Any]] = [[], [], []]
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        assert chunk.usage is None
        for choice in chunk.choices:
            assert ends[choice.index] is None, "nothing comes after an end"
            text[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason
            entries[choice.index] += (choice.logprobs and choice.logprobs.content) or []
    assert [choice.message.content for choice in whole.choices] == text
    assert [choice.finish_reason for choice in whole.choices] == ends and "stop" in ends
    assert [choice.logprobs and choice.logprobs.content for choice in whole.choices] == entries
    assert last.usage == whole.usage and last.usage is not None
    assert last.usage.completion_tokens == sum(len(found) for found in entries)
    for stop in stops:
        assert not any(stop in said for said in text)
    expected = [alone.answer(alone.user("go on"), temperature=1.0, seed=40 + i, max_tokens=30, stop=tuple(stops)).text
                for i in range(3)]
    assert text == expected


@pytest.mark.parametrize("echo", [False, True])
def test_of_completions(client: openai.OpenAI, alone: Alone, echo: bool):
    prompts = ["tell me more", "and \U0001f680 more"]
    stops = stops_of(alone, alone.text(prompts[0]), range(50, 54), 24)
    asked: dict[str, Any] = {"model": NAME, "prompt": prompts, "n": 3, "seed": 50, "max_tokens": 24, "echo": echo,
                             "temperature": 1.0, "stop": stops, "logprobs": 1}
    whole = client.completions.create(**asked)
    text, ends = [""] * 6, [None] * 6
    lists: list[dict[str, list[Any]]] = [{name: [] for name in LISTS} for _ in range(6)]
    *chunks, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        for choice in chunk.choices:
            assert ends[choice.index] is None
            text[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason
            for name in LISTS if choice.logprobs else ():
                lists[choice.index][name] += getattr(choice.logprobs, name)
    assert [choice.text for choice in whole.choices] == text
    assert [choice.finish_reason for choice in whole.choices] == ends and "stop" in ends
    for choice, found in zip(whole.choices, lists, strict=True):
        assert {name: getattr(choice.logprobs, name) for name in LISTS} == found
        assert len({len(found[name]) for name in LISTS}) == 1
    assert last.usage == whole.usage and last.usage is not None
    inside = sum(len(alone.text(prompt)) for prompt in prompts) * 3 if echo else 0
    assert last.usage.completion_tokens == sum(len(found["tokens"]) for found in lists) - inside
