"""With exact kernels nothing but the sequence itself decides its logits: not the batch, the chunks, nor the pool."""

import numpy as np
import pytest

from kforge.engine.drafting import PromptLookup, Speculation
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


def recorded(engine: Engine, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[np.ndarray]:
    """Bits of the logits of every generated token, by prompt."""
    rows: dict[int, list[np.ndarray]] = {}
    engine.on_logits = lambda sequence, _, logits: rows.setdefault(sequence, []).append(logits.view(np.int32).copy())
    try:
        done = engine.generate(prompts, params)
    finally:
        engine.on_logits = None
    return [np.stack(rows[c.sequence]) for c in done]


@pytest.fixture(scope="module")
def alone(native, prompts) -> list[np.ndarray]:
    return [recorded(native, [prompt])[0] for prompt in prompts]


def test_logits_are_the_same_bits_in_a_batch_of_eight(native, prompts, alone):
    for one, many in zip(alone, recorded(native, prompts), strict=True):
        np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("budget", [3, 16])
def test_logits_are_the_same_bits_for_any_chunking(model, kernels, weights, prompts, alone, budget):
    engine = Engine(model, kernels, weights=weights, kv_tokens=2048, max_sequences=8, max_tokens_per_step=budget)
    for one, many in zip(alone, recorded(engine, prompts), strict=True):
        np.testing.assert_array_equal(one, many)


def test_logits_of_a_text_are_the_same_bits_for_any_chunk_and_thread_count(model, kernels, weights, native):
    ids = list(range(100, 400))
    whole = native.logits(ids, 16).view(np.int32)
    single = Engine(model, kernels, weights=weights, threads=1, kv_tokens=512, max_sequences=64)
    for engine, chunk in ((native, 7), (single, 64)):
        np.testing.assert_array_equal(whole, engine.logits(ids, chunk).view(np.int32))


def test_a_tiny_pool_preempts_and_still_says_the_same(model, kernels, weights, native):
    texts = [[7 * i + j for j in range(60)] for i in range(6)]
    params = SamplingParams(max_tokens=80, ignore_eos=True)
    wanted = [c.tokens for c in native.generate(texts, params)]
    small = Engine(model, kernels, weights=weights, kv_tokens=6 * 64, max_sequences=8)
    assert [c.tokens for c in small.generate(texts, params)] == wanted
    assert small.stats.preemptions > 0
    small.check_integrity()


def test_sampled_text_depends_on_the_seed_and_not_on_the_batch(native, prompts):
    def params(seed: int) -> SamplingParams:
        return SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=16, ignore_eos=True)

    alone = [native.generate([p], params(i))[0].tokens for i, p in enumerate(prompts)]
    together = [c.tokens for c in native.generate(prompts, [params(i) for i in range(len(prompts))])]
    assert alone == together
    assert native.generate([prompts[0]], params(99))[0].tokens != alone[0]


def test_a_prompt_found_in_the_cache_changes_no_bit(native):
    prompt = list(range(700, 900))
    native.forget_prefixes()
    computed = recorded(native, [prompt])[0]
    before = native.stats.prefix_hit_tokens
    np.testing.assert_array_equal(recorded(native, [prompt])[0], computed)
    assert native.stats.prefix_hit_tokens - before == 192, "three full pages of 64"


class CheckAll:
    """A policy that checks whatever is guessed."""

    def lengths(self, rates, offered, spare):
        return [min(n, spare // len(offered)) for n in offered]

    def passed(self, sequences, tokens, seconds):
        pass


class Hindsight:
    """Knows the whole text, and is wrong about every seventh token of it."""

    def __init__(self, text: list[int]) -> None:
        self.text = [token if at % 7 else token + 1 for at, token in enumerate(text)]

    def propose(self, tokens, k):
        return self.text[len(tokens) : len(tokens) + k]


@pytest.mark.parametrize("temperature, least", [(0.0, 2.0), (0.8, 4.0)])
def test_guessing_changes_no_bit_and_saves_passes(model, kernels, weights, native, temperature, least):
    """Greedy by prompt look-up on a text that repeats itself, sampled by look-up of what was sampled before."""
    ids = model.tokenizer.encode(4 * "The quick brown fox jumps over the lazy dog.\n")
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=40, ignore_eos=True)
    said = ids + list(native.generate([ids], params)[0].tokens)
    guessing = Engine(model, kernels, weights=weights, kv_tokens=1024, max_sequences=1, speculate=Speculation(
        (lambda: Hindsight(said)) if temperature else PromptLookup, CheckAll()))
    wanted, got = recorded(native, [ids], params), recorded(guessing, [ids], params)
    np.testing.assert_array_equal(got[0], wanted[0])
    stats = guessing.stats
    assert stats.passes == stats.generated_tokens - stats.accepted_tokens
    assert stats.tokens_per_pass > least


def test_a_shared_prompt_is_computed_once_and_changes_nothing(native):
    prompt = list(range(500, 700))
    native.forget_prefixes()
    wanted = native.generate([prompt], GREEDY)[0].tokens
    native.add(prompt, SamplingParams(max_tokens=30, ignore_eos=True))
    native.step()
    before = native.stats.computed_tokens
    second = native.add(prompt, GREEDY)
    tokens = [o.token for o in native.step() if o.sequence == second]
    assert native.stats.computed_tokens - before == 1 + 200 - 192, "three full pages of 64 were shared"
    while not native.idle:
        tokens += [o.token for o in native.step() if o.sequence == second]
    assert tuple(tokens) == wanted
