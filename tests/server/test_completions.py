"""Plain completions: several prompts, token ids, echo, and the log likelihoods that evaluation harnesses ask for."""

from __future__ import annotations

import openai
import pytest
from served import NAME, Alone

from kforge.engine.sampling import log_probabilities


def test_prompts_as_text_and_as_ids_say_the_same(client: openai.OpenAI, alone: Alone):
    ids = alone.text("once upon a time")
    asked = {"model": NAME, "temperature": 0.9, "seed": 11, "max_tokens": 20}
    expected = alone.answer(ids, temperature=0.9, seed=11, max_tokens=20).text
    assert client.completions.create(**asked, prompt="once upon a time").choices[0].text == expected
    assert client.completions.create(**asked, prompt=ids).choices[0].text == expected
    chunks = list(client.completions.create(**asked, prompt=[ids], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"


def test_choices_of_several_prompts_come_prompt_by_prompt(client: openai.OpenAI, alone: Alone):
    prompts = ["first", "the second one"]
    said = client.completions.create(model=NAME, prompt=prompts, n=2, temperature=1, seed=4, max_tokens=10)
    expected = [alone.answer(alone.text(p), temperature=1, seed=4 + i, max_tokens=10).text
                for p in prompts for i in range(2)]
    assert [choice.text for choice in said.choices] == expected
    assert [choice.index for choice in said.choices] == [0, 1, 2, 3]
    assert said.usage and said.usage.prompt_tokens == sum(len(alone.text(p)) for p in prompts)


def test_without_a_limit_an_answer_has_sixteen_tokens(client: openai.OpenAI):
    said = client.completions.create(model=NAME, prompt="some", temperature=0)
    assert said.usage and said.usage.completion_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_first(client: openai.OpenAI, alone: Alone, stream: bool):
    asked = {"model": NAME, "prompt": "say after me", "echo": True, "temperature": 0, "max_tokens": 6}
    expected = "say after me" + alone.answer(alone.text("say after me"), max_tokens=6).text
    if stream:
        text = "".join(c.choices[0].text for c in client.completions.create(**asked, stream=True))
    else:
        text = client.completions.create(**asked).choices[0].text
    assert text == expected


def test_echo_of_no_tokens_is_the_prompt(client: openai.OpenAI):
    said = client.completions.create(model=NAME, prompt="nothing more", echo=True, max_tokens=0)
    assert said.choices[0].text == "nothing more"
    assert said.usage and said.usage.completion_tokens == 0


@pytest.mark.parametrize("most", [0, 1])
def test_a_prompts_log_likelihoods_as_a_harness_asks_for_them(client: openai.OpenAI, alone: Alone, most: int):
    """The form that lm-eval's local-completions sends and reads: ids, echo, logprobs 1, at most one token."""
    context, continuation = alone.text("the sun rises in"), [101, 7, 300, 9, 12]
    ids = [*context, *continuation]
    said = client.completions.create(model=NAME, prompt=[ids], echo=True, logprobs=1, max_tokens=most, temperature=0)
    logprobs = said.choices[0].logprobs
    assert logprobs and logprobs.token_logprobs and logprobs.top_logprobs and logprobs.tokens
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(ids) + most
    assert len(logprobs.text_offset or []) == len(ids) + most
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    rows = alone.engine.logits(ids)
    for at, (token, row) in enumerate(zip(ids[1:], rows, strict=False), 1):
        (_, value), (_, best) = log_probabilities(row, token, 1)
        assert logprobs.token_logprobs[at] == value
        assert max(logprobs.top_logprobs[at].values()) == best
    if most:
        assert logprobs.token_logprobs[-1] == log_probabilities(rows[-1], int(rows[-1].argmax()), 0)[0][1]


def test_log_likelihoods_of_several_prompts_at_once(client: openai.OpenAI, alone: Alone):
    prompts = [alone.text("a short one"), alone.text("a rather longer one " * 12), [65]]
    said = client.completions.create(model=NAME, prompt=prompts, echo=True, logprobs=0, max_tokens=1, temperature=0)
    for choice, ids in zip(said.choices, prompts, strict=True):
        rows = alone.engine.logits(ids)
        expected = [None, *(log_probabilities(row, token, 0)[0][1] for row, token in zip(rows, ids[1:], strict=False))]
        assert choice.logprobs and choice.logprobs.token_logprobs
        assert choice.logprobs.token_logprobs[:-1] == expected


def test_text_offsets_point_at_tokens(client: openai.OpenAI):
    said = client.completions.create(model=NAME, prompt="plain words here", echo=True, logprobs=0, max_tokens=0)
    choice = said.choices[0]
    logprobs = choice.logprobs
    assert logprobs and logprobs.tokens and logprobs.text_offset
    shown = [(token, at) for token, at in zip(logprobs.tokens, logprobs.text_offset, strict=True)
             if not token.startswith("<|")]
    assert "".join(token for token, _ in shown) == choice.text
    assert all(choice.text.startswith(token, at) for token, at in shown)
