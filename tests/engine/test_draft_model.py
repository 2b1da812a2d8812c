"""A draft model changes no bit of what is said, saves passes, and under relaxed sampling keeps the distribution."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from goodness import chi_square
from toy_model import CONFIG, DRAFT_CONFIG, ToyModel

from kforge.core.errors import KforgeError
from kforge.engine import choice
from kforge.engine.draft_model import DraftModel
from kforge.engine.engine import Engine
from kforge.engine.rejection import verified
from kforge.engine.request import SamplingParams
from kforge.engine.sampling import Purpose, distribution, draw, uniform
from kforge.engine.weights import Weights
from kforge.models import load
from kforge.models.roles import Matrix
from kforge.models.synth import synth
from kforge.operators.layouts import concat

PLAIN = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, top_p=0.95, seed=5)


class Always:
    """A policy that checks all that there is room for, at most so many of a sequence."""

    def __init__(self, most: int = 8) -> None:
        self.most = most

    def lengths(self, rates, offered, spare, price=None):
        lengths = []
        for offer in offered:
            lengths.append(min(self.most, offer, spare))
            spare -= lengths[-1]
        return lengths

    def passed(self, sequences, tokens, seconds, guessing=0.0):
        pass


class Toys:
    def __init__(self, kernels) -> None:
        self.kernels = kernels
        self.target, self.draft = ToyModel(), ToyModel(DRAFT_CONFIG)
        self.weights, self.draft_weights = Weights(self.target), Weights(self.draft)

    def engine(self, draft: str | None = None, **options) -> Engine:
        """``draft``: None, "same" (the target itself) or "less" (without its last layer); all is checked."""
        options = {"kv_tokens": 1024, "max_sequences": 4, "threads": 1, **options}
        if draft is not None and "speculate" not in options:
            model, weights = (self.target, self.weights) if draft == "same" else (self.draft, self.draft_weights)
            options["speculate"] = DraftModel(model, weights, Always())
        return Engine(self.target, self.kernels, weights=self.weights, text=False, **options)


@pytest.fixture(scope="module")
def toys(kernels) -> Toys:
    return Toys(kernels)


def prompts(count: int) -> list[list[int]]:
    return [[(37 * i + 11 * n) % CONFIG.vocab for i in range(20 + 30 * n)] for n in range(count)]


def recorded(engine: Engine, texts: list[list[int]], params: SamplingParams) -> list[tuple[tuple[int, ...], bytes]]:
    """Tokens and bits of all logits, by prompt."""
    rows: dict[int, list[bytes]] = {}
    engine.on_logits = lambda sequence, _, logits: rows.setdefault(sequence, []).append(logits.tobytes())
    done = engine.generate(texts, params)
    engine.on_logits = None
    engine.check_integrity()
    return [(c.tokens, b"".join(rows[c.sequence])) for c in done]


@pytest.mark.parametrize("params", [PLAIN, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["same", "less"])
def test_tokens_and_logits_are_the_same_bits(toys, draft, params):
    plain, guessing = toys.engine(), toys.engine(draft)
    wanted, got = recorded(plain, prompts(6), params), recorded(guessing, prompts(6), params)
    plain.close()
    guessing.close()
    assert got == wanted
    stats = guessing.stats
    assert stats.passes == stats.generated_tokens - stats.accepted_tokens
    assert stats.draft_passes > 0 and 0 < stats.draft_seconds < stats.seconds
    if draft == "same":
        assert stats.accepted_tokens == stats.drafted_tokens > 0, "the target's own guesses are right, all of them"
    else:
        assert 0 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.parametrize("options", [
    {"kv_tokens": 6 * 64, "max_sequences": 6},
    {"max_tokens_per_step": 7, "max_prefill_tokens_per_step": 3, "max_sequences": 2},
    {"prefix_cache": False, "max_sequences": 1},
], ids=["preempted", "in small chunks", "one by one"])
def test_the_target_s_own_guesses_are_all_right_whatever_happens(toys, options):
    """Exact kernels: one wrong key or value in the draft's cache, and a guess differs."""
    texts = [*prompts(5), [*prompts(5)[4][:130], 3]]
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    plain, guessing = toys.engine(), toys.engine("same", **options)
    assert recorded(guessing, texts, params) == recorded(plain, texts, params)
    stats = guessing.stats
    assert stats.accepted_tokens == stats.drafted_tokens > 20
    assert ("kv_tokens" in options) == (stats.preemptions > 0)
    plain.close()
    guessing.close()


class Overflowing(ToyModel):
    """A model whose activations leave the range of their type."""

    def _vector(self, role, layer):
        return np.full_like(super()._vector(role, layer), np.nan if layer is None else 1)


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.9}, {}], ids=["top_k", "top_p", "all"])
@pytest.mark.parametrize("relaxed", [False, True], ids=["to the bit", "relaxed"])
def test_logits_of_a_draft_model_that_are_no_numbers_guess_nothing(toys, relaxed, filters):
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, seed=1, **filters)
    plain = toys.engine()
    engine = toys.engine(speculate=DraftModel(Overflowing(DRAFT_CONFIG), policy=Always()), relaxed_sampling=relaxed)
    assert engine.generate([[1, 2, 3]], params)[0].tokens == plain.generate([[1, 2, 3]], params)[0].tokens
    assert engine.stats.draft_passes > 0 and engine.stats.drafted_tokens == 0
    engine.close()
    plain.close()


def test_a_dropped_request_gives_the_draft_s_pages_back(toys):
    engine = toys.engine("same")
    ids = [engine.add(text, PLAIN) for text in prompts(3)[::-1]]  # the longest first: its guesses get the rows
    for _ in range(4):
        engine.step()
    assert engine.stats.draft_passes > 0
    for sequence in ids:
        engine.abort(sequence)
    engine.check_integrity()
    blocks = engine._draft.cache.blocks
    assert engine.idle and blocks.free_pages == blocks.pages and blocks.kept_pages > 0
    engine.forget_prefixes()
    assert blocks.kept_pages == 0
    engine.close()


def test_a_draft_step_that_fails_leaves_all_as_it_was(toys, monkeypatch):
    engine = toys.engine("less")
    wanted = recorded(engine, prompts(2), PLAIN)
    engine.forget_prefixes()
    ids = [engine.add(text, PLAIN) for text in prompts(2)]
    said: dict[int, list[int]] = {i: [] for i in ids}
    runner, steps = engine._draft._runner, 0
    real = runner.run

    def sometimes_fails(shape):
        nonlocal steps
        steps += 1
        if steps % 13 == 5:  # a step has at most eight passes of the draft model, so some get through
            raise KforgeError("the draft model is on fire")
        real(shape)

    with monkeypatch.context() as broken:
        broken.setattr(runner, "run", sometimes_fails)
        failures = 0
        while not engine.idle:
            try:
                for output in engine.step():
                    said[output.sequence].append(output.token)
            except KforgeError:
                failures += 1
            engine.check_integrity()
    assert failures > 3 and [tuple(said[i]) for i in ids] == [tokens for tokens, _ in wanted]
    engine.close()


def test_a_constraint_is_asked_for_the_answer_alone(toys):
    """Guesses that it would refuse, or fail on, must not reach it."""
    class Even:
        def __init__(self) -> None:
            self.asked: list[list[int]] = []

        def allowed(self, tokens):
            self.asked.append(list(tokens))
            return np.arange(CONFIG.vocab) % 2 == 0

    even = Even()
    engine = toys.engine("same")
    [done] = engine.generate([prompts(1)[0]], SamplingParams(max_tokens=20, ignore_eos=True, constraint=even))
    assert even.asked == [list(done.tokens[:n]) for n in range(20)]
    engine.close()


def test_guessing_is_asked_for_by_name_and_does_not_change_the_answer(toys):
    plain = toys.engine()
    engine = toys.engine(speculate="draft", draft_model=toys.draft, kv_tokens=256, max_sequences=1)
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    assert recorded(engine, [[5, 6, 7]], params) == recorded(plain, [[5, 6, 7]], params)
    assert engine.stats.draft_passes > 0, "it is tried at least"
    uses = [use for use in engine.kernels_used() if use.label.startswith("draft.")]
    assert uses and all(use.calls > 0 for use in uses)
    engine.reset_stats()
    assert engine.stats.draft_passes == 0
    engine.close()
    plain.close()


def test_torch_guesses_too(toys):
    engine = Engine(toys.target, "none", text=False, kv_tokens=256, max_sequences=2, threads=1,
                    speculate=DraftModel(toys.target, policy=Always()))
    done = engine.generate(prompts(2), SamplingParams(max_tokens=12, ignore_eos=True))
    assert [len(c.tokens) for c in done] == [12, 12]
    assert engine.stats.accepted_tokens > 0.5 * engine.stats.drafted_tokens
    engine.close()


def test_isolated_kernels_guess_too(toys):
    """Target and draft share one locked-down process."""
    plain = toys.engine()
    isolated = toys.engine("same", isolate=True)
    assert isolated.isolated and recorded(isolated, prompts(2), PLAIN) == recorded(plain, prompts(2), PLAIN)
    assert isolated.stats.accepted_tokens == isolated.stats.drafted_tokens > 0
    isolated.close()
    plain.close()


class OtherWords(ToyModel):
    """A model whose tokenizer has other words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        self.words = words

    def _make_tokenizer(self):
        from kforge.models.tokenizer import PieceStyle, Tokenizer, Vocabulary

        vocabulary = Vocabulary(self.words, frozenset(), frozenset(), PieceStyle.BYTE_LEVEL)
        return Tokenizer(None, vocabulary, None, None, False, None)


WORDS = tuple(f"w{i}" for i in range(CONFIG.vocab))


@pytest.mark.parametrize("options, sentence", [
    ({"speculate": "draft"}, "needs one"),
    ({"draft_model": ToyModel()}, "not asked for guesses"),
    ({"speculate": "ngram", "draft_model": ToyModel()}, "not asked for guesses"),
    ({"speculate": DraftModel(ToyModel()), "draft_model": ToyModel()}, "not asked for guesses"),
    ({"relaxed_sampling": True}, "say how to guess"),
])
def test_options_that_do_not_go_together_are_one_sentence(toys, options, sentence):
    with pytest.raises(KforgeError, match=sentence):
        toys.engine(**options)


@pytest.mark.parametrize("torch", [False, True], ids=["kernels", "torch"])
def test_both_caches_must_fit_into_memory_together(toys, monkeypatch, torch):
    """A cache takes its memory as it fills, so what is free says nothing of the target's when the draft's is made."""
    import psutil

    tokens = 64 * 1024
    cache, free = tokens * CONFIG.kv_bytes_per_token("f16"), psutil.virtual_memory()
    kernels, options = "none" if torch else toys.kernels, {"kv_tokens": tokens, "text": False, "threads": 1}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free._replace(available=(256 << 20) + int(1.3 * cache)))
    Engine(toys.target, kernels, **options).close()
    with pytest.raises(KforgeError, match=r"toy-draft needs .* memory is free"):
        Engine(toys.target, kernels, **options, speculate=DraftModel(toys.draft))


def test_a_draft_model_must_have_the_same_vocabulary(toys):
    wider = ToyModel(dataclasses.replace(DRAFT_CONFIG, vocab=352))
    with pytest.raises(KforgeError, match="toy-draft cannot guess for toy: it has 352 tokens, not 320"):
        toys.engine(speculate="draft", draft_model=wider)
    other = (*WORDS[:7], "seven", *WORDS[8:])
    with pytest.raises(KforgeError, match="Token 7 is 'seven' to the one and 'w7' to the other"):
        DraftModel(OtherWords(other)).check(OtherWords(WORDS), text=True)
    DraftModel(OtherWords(WORDS)).check(OtherWords((*WORDS[:300], *WORDS[300:])), text=True)
    DraftModel(OtherWords(WORDS)).check(OtherWords(WORDS[:300]), text=True)  # padded differently
    folder = OtherWords((*WORDS[:300], *[""] * 20))
    gguf = OtherWords((*WORDS[:300], *(f"[PAD{i}]" for i in range(300, 320))))
    DraftModel(gguf).check(folder, text=True)
    DraftModel(folder).check(gguf, text=True)


def test_files_with_one_tokenizer_go_together(kernels, tmp_path):
    for layers in (1, 2):
        synth("tiny-llama-test", "q4_0", tmp_path / f"{layers}.gguf", layers)
    target, draft = load(tmp_path / "2.gguf"), load(tmp_path / "1.gguf")
    plain = Engine(target, kernels, kv_tokens=256, max_sequences=1, threads=1)
    engine = Engine(target, kernels, kv_tokens=256, max_sequences=1, threads=1,
                    speculate=DraftModel(draft, policy=Always()))
    ids = target.tokenizer.encode("Once upon a time")
    assert engine.generate([ids], PLAIN)[0].text == plain.generate([ids], PLAIN)[0].text
    assert engine.stats.draft_passes > 0
    engine.close()
    plain.close()


# Relaxed sampling

PROMPT = [5, 9, 200, 31, 7]
KEPT = 3  # most probable tokens that may be said: so few that all texts of three tokens can be counted
DRAWS = 1000
TOGETHER = 16  # of the engine's 64, so that there are rows of logits to check two guesses of each


def relaxed(toys: Toys, draft: str | None, **options) -> Engine:
    return toys.engine(draft, relaxed_sampling=True, max_sequences=64, **options)


def texts_of_three(engine: Engine) -> dict[tuple[int, ...], int]:
    """Of a fourth token nothing is asked: it makes room for two guesses after the first one."""
    counts: dict[tuple[int, ...], int] = {}
    params = [SamplingParams(temperature=1.0, top_k=KEPT, seed=n, max_tokens=4, ignore_eos=True)
              for n in range(DRAWS)]
    for start in range(0, DRAWS, TOGETHER):
        some = params[start : start + TOGETHER]
        for done in engine.generate([PROMPT] * len(some), some):
            counts[done.tokens[:3]] = counts.get(done.tokens[:3], 0) + 1
    return counts


def target_s_own(engine: Engine) -> dict[tuple[int, ...], float]:
    """Probability of every text of three tokens after the prompt, by the target's logits."""
    params, texts = SamplingParams(temperature=1.0, top_k=KEPT), {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, p in texts.items():
            found = distribution(engine.logits([*PROMPT, *text])[-1], params)
            for at, weight in enumerate(found.weights / found.weights.sum()):
                longer[(*text, found.id(at))] = p * float(weight)
        texts = longer
    return texts


def against(counts: dict[tuple[int, ...], int], wanted: dict[tuple[int, ...], float]) -> float:
    assert set(counts) <= set(wanted)
    return chi_square(np.array([counts.get(text, 0) for text in wanted]), np.array(list(wanted.values())))


def test_relaxed_sampling_keeps_the_distribution(toys):
    engine = relaxed(toys, "less")
    counts = texts_of_three(engine)
    assert 0.05 < engine.stats.accepted_tokens / engine.stats.drafted_tokens < 0.95
    assert against(counts, target_s_own(engine)) < 1
    engine.close()


class Doubled(ToyModel):
    """A model with two ids for every token of the toys' vocabulary, of which the target has the first."""

    def _matrix(self, role, layer):
        half = ToyModel(DRAFT_CONFIG)._matrix(role, layer)
        return concat([half, half]) if role is Matrix.EMBED else half


class Unchecked(DraftModel):
    def check(self, target, text):
        """Without tokenizers vocabularies must be of the same size, and these are not."""


def test_relaxed_sampling_keeps_the_distribution_beside_a_larger_vocabulary(toys):
    wide = Unchecked(Doubled(dataclasses.replace(DRAFT_CONFIG, vocab=2 * CONFIG.vocab)), policy=Always())
    engine = relaxed(toys, None, speculate=wide)
    counts = texts_of_three(engine)
    assert 0.05 < engine.stats.accepted_tokens / engine.stats.drafted_tokens < 0.95
    assert against(counts, target_s_own(engine)) < 1
    engine.close()


def accept_what_may_be_said(wanted, guess, seed, position):
    return guess.token if guess.token in wanted.ids else verified(wanted, guess, seed, position)


def draw_again_from_the_target(wanted, guess, seed, position):
    token = verified(wanted, guess, seed, position)
    return token if token == guess.token else draw(wanted, uniform(seed, position, Purpose.RESIDUAL))


@pytest.mark.parametrize("wrong", [accept_what_may_be_said, draw_again_from_the_target])
def test_the_measure_sees_what_is_wrong_in_an_engine(toys, monkeypatch, wrong):
    engine = relaxed(toys, "less")
    wanted = target_s_own(engine)
    monkeypatch.setattr(choice, "verified", wrong)
    assert against(texts_of_three(engine), wanted) > 1.5
    engine.close()


def test_relaxed_sampling_keeps_the_distribution_of_looked_up_guesses(toys):
    from kforge.engine.drafting import Speculation

    class Sometimes:
        """Guesses by nothing but the place, and the most and the least probable alike."""

        def propose(self, tokens, k):
            return [firsts[len(tokens) % len(firsts)]] * min(k, 2)

    plain = toys.engine()
    wanted = target_s_own(plain)
    firsts = sorted({text[1] for text in wanted})
    plain.close()
    engine = relaxed(toys, None, speculate=Speculation(Sometimes, Always()))
    assert against(texts_of_three(engine), wanted) < 1
    assert 0 < engine.stats.accepted_tokens < engine.stats.drafted_tokens
    engine.close()


def test_relaxed_sampling_accepts_more_and_says_the_same_again(toys):
    def run(make) -> tuple[list[tuple[int, ...]], float]:
        engine = make()
        params = [SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=n) for n in range(4)]
        tokens = [c.tokens for c in engine.generate(prompts(4), params)]
        rate = engine.stats.accepted_tokens / engine.stats.drafted_tokens
        engine.close()
        return tokens, rate

    exact, exact_rate = run(lambda: toys.engine("less"))
    first, rate = run(lambda: relaxed(toys, "less"))
    again, _ = run(lambda: relaxed(toys, "less"))
    assert first == again and first != exact and rate > exact_rate


def test_relaxed_sampling_changes_nothing_for_who_does_not_sample(toys):
    plain, engine = toys.engine(), relaxed(toys, "less")
    assert recorded(engine, prompts(4), PLAIN) == recorded(plain, prompts(4), PLAIN)
    engine.close()
    plain.close()
