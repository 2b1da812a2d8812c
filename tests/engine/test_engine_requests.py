"""What a request may ask for besides tokens, and what becomes of the others when one goes wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_model import CONFIG, ToyModel

from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.engine.request import FinishReason, Output, SamplingParams

PROMPT = [(37 * i) % 320 for i in range(150)]
OTHER = [(41 * i) % 320 for i in range(70)]
PLAIN = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture(scope="module")
def toy(kernels):
    engine = Engine(ToyModel(), kernels, kv_tokens=1024, max_sequences=8, text=False)
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def afterwards(toy):
    yield
    assert toy.idle
    toy.check_integrity()


def outputs(engine: Engine, prompt: list[int], params: SamplingParams) -> list[Output]:
    return list(engine.stream(prompt, params))


def log_softmax(row: np.ndarray) -> np.ndarray:
    wide = row.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_are_the_model_s_own(toy, temperature):
    seen: list[np.ndarray] = []
    toy.on_logits = lambda sequence, position, logits: seen.append(logits.copy())
    plain = SamplingParams(max_tokens=6, ignore_eos=True, temperature=temperature, top_k=5)
    got = outputs(toy, PROMPT, replace(plain, logprobs=3))
    toy.on_logits = None
    assert [o.token for o in got] == [o.token for o in outputs(toy, PROMPT, plain)]
    for output, row in zip(got, seen, strict=True):
        wanted = log_softmax(row)
        assert output.logprobs is not None and output.logprobs[0][0] == output.token and len(output.logprobs) == 4
        assert [t for t, _ in output.logprobs[1:]] == np.argsort(-wanted, kind="stable")[:3].tolist()
        for token, value in output.logprobs:
            assert value == pytest.approx(wanted[token], abs=1e-9)


def test_log_probabilities_of_the_prompt_come_with_the_first_token(toy):
    got = outputs(toy, PROMPT, SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=1))
    assert got[1].prompt_logprobs is None
    scored = got[0].prompt_logprobs
    assert scored is not None and len(scored) == len(PROMPT) - 1
    wanted = toy.logits(PROMPT)
    for at, entry in enumerate(scored):
        row = log_softmax(wanted[at])
        assert entry[0] == (PROMPT[at + 1], pytest.approx(row[PROMPT[at + 1]], abs=1e-9))
        assert entry[1] == (int(row.argmax()), pytest.approx(row.max(), abs=1e-9))


class Only:
    """Allows one token at each place."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.asked: list[list[int]] = []

    def allowed(self, tokens):
        self.asked.append(list(tokens))
        mask = np.zeros(CONFIG.vocab, np.bool_)
        mask[self.tokens[len(tokens)]] = True
        return mask


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_decides_what_may_be_said(toy, temperature):
    only = Only([5, 9, 5, 7])
    got = outputs(toy, PROMPT, SamplingParams(max_tokens=4, temperature=temperature, constraint=only))
    assert [o.token for o in got] == only.tokens
    assert only.asked == [[], [5], [5, 9], [5, 9, 5]]


class Broken:
    def __init__(self, after: int, error: bool) -> None:
        self.after, self.error = after, error

    def allowed(self, tokens):
        if len(tokens) < self.after:
            return None
        if self.error:
            raise ValueError("no such rule")
        return np.zeros(CONFIG.vocab, np.bool_)


@pytest.mark.parametrize("error, words", [(True, "no such rule"), (False, "allows none")])
@pytest.mark.parametrize("after", [0, 3])
def test_a_constraint_that_fails_ends_its_own_request_alone(toy, error, words, after):
    wanted = [o.token for o in outputs(toy, OTHER, PLAIN)]
    failing = toy.add(PROMPT, SamplingParams(max_tokens=10, ignore_eos=True, constraint=Broken(after, error)))
    other = toy.add(OTHER, PLAIN)
    said: dict[int, list[Output]] = {failing: [], other: []}
    while not toy.idle:
        for output in toy.step():
            said[output.sequence].append(output)
    assert [o.token for o in said[other]] == wanted
    assert len(said[failing]) == after + 1
    assert (said[failing][-1].token, said[failing][-1].finish) == (-1, FinishReason.FAILED)
    assert words in (said[failing][-1].error or "")
    with pytest.raises(KforgeError, match=words):
        toy.generate([OTHER, PROMPT], [PLAIN, SamplingParams(constraint=Broken(after, error))])


def test_a_request_can_be_dropped_by_who_watches_another(toy):
    wanted = [o.token for o in outputs(toy, OTHER, PLAIN)]
    first, second = toy.add(OTHER, PLAIN), toy.add(PROMPT, PLAIN)
    toy.on_logits = lambda sequence, position, logits: toy.abort(second) if position == len(OTHER) + 3 else None
    said: dict[int, list[int]] = {first: [], second: []}
    while not toy.idle:
        for output in toy.step():
            said[output.sequence].append(output.token)
    assert said[first] == wanted and 0 < len(said[second]) < 10
    itself = toy.add(OTHER, PLAIN)
    toy.on_logits = lambda sequence, position, logits: toy.abort(itself)
    assert toy.step() == [] and toy.idle
    toy.on_logits = None


def test_a_step_that_fails_leaves_nothing_behind_and_the_next_one_goes_on(toy, monkeypatch):
    toy.forget_prefixes()
    wanted = [o.token for o in outputs(toy, PROMPT, PLAIN)]
    toy.forget_prefixes()
    sequence = toy.add(PROMPT, PLAIN)

    def fails(shape):
        raise KforgeError("the machine is on fire")

    with monkeypatch.context() as broken:
        broken.setattr(toy._runner, "run", fails)
        for _ in range(2):
            with pytest.raises(KforgeError, match="on fire"):
                toy.step()
            toy.check_integrity()
    second = toy.add(PROMPT, PLAIN)
    said: dict[int, list[int]] = {sequence: [], second: []}
    while not toy.idle:
        for output in toy.step():
            said[output.sequence].append(output.token)
    assert said == {sequence: wanted, second: wanted}


def test_what_is_in_hand_can_be_seen(toy):
    toy.forget_prefixes()
    ids = [toy.add([n + 1] * 100, PLAIN) for n in range(10)]
    toy.step()
    seen = toy.waiting, toy.running, toy.pages_in_use, toy.pages_kept
    assert seen == (4, 6, 12, 0), "512 tokens a step: the sixth got 12"
    for sequence in ids:
        toy.abort(sequence)
    assert (toy.waiting, toy.running, toy.pages_in_use, toy.pages_kept) == (0, 0, 0, 5)


def test_guessing_is_asked_for_by_name(kernels):
    engine = Engine(ToyModel(), kernels, kv_tokens=256, max_sequences=1, text=False, speculate="ngram")
    plain = SamplingParams(max_tokens=100, ignore_eos=True)
    period = [5, 6, 7] * 20
    assert len(engine.generate([period], plain)[0].tokens) == 100
    assert engine.stats.passes + engine.stats.accepted_tokens == 100
    engine.close()
    with pytest.raises(KforgeError, match="no speculation 'magic'"):
        Engine(ToyModel(), kernels, speculate="magic")


def test_limits_below_one_are_refused(kernels):
    with pytest.raises(KforgeError, match=r"at least 1"):
        Engine(ToyModel(), kernels, max_prefill_tokens_per_step=0)


class Overflowing(ToyModel):
    """A model whose activations leave the range of their type."""

    def _vector(self, role, layer):
        return np.full_like(super()._vector(role, layer), np.nan if layer is None else 1)


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.9}, {"logprobs": 2, "temperature": 0.0}, {}],
                         ids=["top_k", "top_p", "log probabilities", "all"])
def test_a_model_that_overflows_fails_its_requests_and_nobody_else(kernels, filters):
    engine = Engine(Overflowing(), kernels, kv_tokens=1024, max_sequences=8, text=False)
    (last,) = outputs(engine, OTHER, SamplingParams(**{"max_tokens": 5, "temperature": 1.0, "seed": 1, **filters}))
    assert last.finish is FinishReason.FAILED and "no numbers" in (last.error or "")
    assert engine.idle
    engine.check_integrity()
    engine.close()
