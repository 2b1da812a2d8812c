"""Parts of the server that need no process: an engine that breaks, a grammar that goes back, words of tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from kforge.core.errors import KforgeError
from kforge.engine.request import Output, SamplingParams
from kforge.engine.steps import StepLimits
from kforge.models.synth_vocab import synth_vocab
from kforge.models.tokenizer import PartitioningEncoder, PieceStyle, Tokenizer, Vocabulary
from kforge.server.desk import Desk
from kforge.server.engine_thread import EngineThread
from kforge.server.errors import ApiError
from kforge.server.exchange import Event, Exchange, Job
from kforge.server.grammar import Grammars
from kforge.server.metrics import Metrics
from kforge.server.words import CompletionLogprobs, token_text

LIMITS = StepLimits(64, 4, 16, 64, 256)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
          "additionalProperties": False}


class BrokenEngine:
    """Lets requests in, gives one token, and then fails."""

    limits = LIMITS
    waiting = pages_in_use = pages_kept = 0

    def __init__(self) -> None:
        self.running = self.steps = 0
        self.closed = False

    @property
    def stats(self) -> Any:
        return None

    @property
    def idle(self) -> bool:
        return self.running == 0

    def add(self, prompt: Any, params: SamplingParams) -> int:
        if prompt == (666,):
            raise KforgeError("That prompt cannot be.")
        self.running += 1
        return self.running

    def step(self) -> list[Output]:
        self.steps += 1
        if self.steps > 1:
            raise KforgeError("Kernel abc crashed.")
        return [Output(i + 1, 5, "x") for i in range(self.running)]

    def close(self) -> None:
        self.closed = True


def test_when_the_engine_breaks_everybody_is_told_and_nobody_let_in():
    engine = BrokenEngine()
    given_up = []

    async def main() -> None:
        thread = EngineThread(lambda: engine)  # type: ignore[arg-type, return-value]
        thread.start()
        assert thread.limits() == LIMITS
        desk = Desk(thread, 10, Metrics())
        desk.on_failure = lambda: given_up.append(True)
        exchange = Exchange([Job((1,), SamplingParams()), Job((666,), SamplingParams()), Job((2,), SamplingParams())],
                            perf_counter())
        desk.submit(exchange)
        events: list[Event] = []
        async with asyncio.timeout(20):
            while more := await exchange.next():
                events += more
        refused = [e for e in events if e.index == 1]
        assert [(e.error.status, e.error.message) for e in refused if e.error] == [(400, "That prompt cannot be.")]
        for index in (0, 2):
            *tokens, last = [e for e in events if e.index == index]
            assert [e.output.token for e in tokens if e.output] == [5]
            assert last.last and last.error and last.error.status == 500
            assert "Kernel abc crashed" in last.error.message
        with pytest.raises(ApiError, match="shutting down"):
            desk.submit(Exchange([Job((1,), SamplingParams())], perf_counter()))
        assert isinstance(desk.failure, KforgeError) and not desk.serving
        thread.join(20)

    asyncio.run(main())
    assert given_up == [True] and engine.closed


def test_an_engine_that_cannot_be_made_is_told_to_who_waits_for_it():
    def make() -> Any:
        raise KforgeError("There is no room for it.")

    thread = EngineThread(make)
    thread.start()
    with pytest.raises(KforgeError, match="no room"):
        thread.limits()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Every byte, pairs of letters, and control tokens."""
    vocab = synth_vocab(1024)
    control = frozenset(i for i, text in enumerate(vocab.texts) if text.startswith("<|"))
    merges = [tuple(merge.split(" ")) for merge in vocab.merges]
    backend = Backend(models.BPE(vocab={text: i for i, text in enumerate(vocab.texts)}, merges=merges))
    encoder = PartitioningEncoder(backend, [], 1024)
    return Tokenizer(encoder, Vocabulary(vocab.texts, control, frozenset(), PieceStyle.BYTE_LEVEL), None, 1023, False,
                     None)


def test_a_grammar_depends_on_the_answer_alone(tokenizer: Tokenizer):
    grammars = Grammars(tokenizer, 1024, (1023, 1020))
    one, other = grammars.constraints(SCHEMA, 2)
    answer = tokenizer.encoder.encode('{"a":7}', parse_special=False)
    ahead = [one.allowed(answer[:n]) for n in range(len(answer) + 1)]
    rng = np.random.default_rng(0)
    for n in rng.integers(0, len(answer) + 1, 40):
        np.testing.assert_array_equal(other.allowed(answer[:n]), ahead[n])
    assert [bool(ahead[n][answer[n]]) for n in range(len(answer))] == [True] * len(answer)
    ends = [bool(mask[1023]) for mask in ahead]
    assert ends == [False] * len(answer) + [True]
    assert np.flatnonzero(ahead[-1]).tolist() == [1020, 1023], "every end token may end it"
    with pytest.raises(KforgeError, match="grammar"):
        other.allowed([*answer, answer[0]])
    np.testing.assert_array_equal(other.allowed(answer[:1]), ahead[1])


@pytest.mark.parametrize("schema", [{"type": "thing"}, {"type": "string", "pattern": "("}, {"$ref": "#/nowhere"}])
def test_a_schema_that_cannot_be_held_is_refused(tokenizer: Tokenizer, schema: dict[str, Any]):
    with pytest.raises(ApiError) as caught:
        Grammars(tokenizer, 1024, (1023,)).constraints(schema, 1)
    assert (caught.value.status, caught.value.param) == (400, "response_format")


def test_without_an_end_token_there_is_no_grammar(tokenizer: Tokenizer):
    with pytest.raises(ApiError, match="ends an answer"):
        Grammars(tokenizer, 1024, ()).constraints(SCHEMA, 1)


def test_served_prompts_come_in_in_small_parts_while_others_wait_for_tokens(tiny: Path,
                                                                            monkeypatch: pytest.MonkeyPatch):
    from kforge.cli.serve import serve

    made: list[dict[str, Any]] = []
    monkeypatch.setattr("kforge.engine.engine.Engine", lambda *given, **options: made.append(options))
    monkeypatch.setattr("kforge.server.serving.serve", lambda name, model, make_engine, options: make_engine())
    serve(str(tiny), kernels="none")
    assert [options["max_prefill_tokens_per_step"] for options in made] == [128]


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_do_not_count_the_space_that_an_echoed_text_does_not_show(echo: bool):
    vocabulary = Vocabulary(("<s>", "\u2581once", "\u2581upon", "!"), frozenset({0}), frozenset(),
                            PieceStyle.SENTENCE_PIECE, prefix_space=True)
    shown = vocabulary_text(vocabulary, [0, 1, 2, 3], echo)
    words = CompletionLogprobs(vocabulary, echo)
    for token in (0, 1, 2, 3):
        words.add(token, None)
    offsets = words.take()["text_offset"]
    assert [shown[at:] for at in offsets[2:]] == [" upon!", "!"]
    assert offsets[:2] == [0, 0]


def vocabulary_text(vocabulary: Vocabulary, ids: list[int], whole: bool) -> str:
    text = b"".join(vocabulary.piece(i) for i in ids).decode()
    return text.removeprefix(" ") if whole else text


def test_parts_of_characters_are_spelled_out():
    assert token_text("é".encode()) == "é"
    assert token_text(b"\xf0\x9f") == "bytes:\\xf0\\x9f"
