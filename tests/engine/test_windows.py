"""Layers with a window hold what they see and no more; what they gave back is read by nobody and found until it is
taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_model import CONFIG, ToyModel

from kforge.engine.cache_groups import ANY_LENGTH, CacheLayout, CachePlan, first_page, most_pages, page_bytes
from kforge.engine.draft_model import DraftModel
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.models.synth_plan import SHAPES

PAGE = 64
GPT_OSS = ToyModel(replace(CONFIG, context_length=2048, windows=(128, 0), sinks=True))
WINDOWED = ToyModel(replace(CONFIG, context_length=2048, windows=(40,), sinks=True))
GREEDY = SamplingParams(max_tokens=45, ignore_eos=True)


class CheckAll:
    """A policy that checks whatever is guessed."""

    def lengths(self, rates, offered, spare, price=None):
        return [min(n, spare // len(offered)) for n in offered]

    def passed(self, sequences, tokens, seconds, guessing=0.0):
        pass


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, CONFIG.vocab, length).tolist()


def free_pages(engine: Engine) -> list[int]:
    held = {page for s in engine._scheduler.running for table in s.tables for page in table.held}
    assert len(held) == engine.pages_in_use
    return [page for page in range(engine.limits.pages) if page not in held]


def poison(engine: Engine) -> None:
    """NaN into every page that nobody holds: an engine without a prefix cache must not read them."""
    free = free_pages(engine)
    for cache in (engine._runner.buffers._keys, engine._runner.buffers._values):
        cache[:, free] = np.nan


def said(engine: Engine, prompts: list[list[int]], poisoned: bool = False, params: SamplingParams = GREEDY
         ) -> list[list[np.ndarray]]:
    """Logits of every token, by prompt; with poison after every step."""
    rows: dict[int, list[np.ndarray]] = {}
    engine.on_logits = lambda sequence, _, logits: rows.setdefault(sequence, []).append(logits.copy())
    ids = [engine.add(prompt, params) for prompt in prompts]
    while not engine.idle:
        engine.step()
        engine.check_integrity()
        if poisoned:
            poison(engine)
    engine.on_logits = None
    return [rows[i] for i in ids]


@pytest.mark.parametrize("model", [GPT_OSS, WINDOWED], ids=["both kinds of layers", "windows alone"])
def test_no_kernel_reads_a_page_that_was_given_back(kernels, model):
    """Chunks that begin anywhere, decoding, preemption; a NaN that anybody reads spreads to the logits."""
    prompts = [text(length, length) for length in (60, 61, 62, 63, 290)]
    engine = Engine(model, kernels, max_sequences=8, kv_tokens=384, max_tokens_per_step=90, text=False,
                    prefix_cache=False, threads=2)
    for wanted, got in zip(said(engine, prompts), said(engine, prompts, poisoned=True), strict=True):
        np.testing.assert_array_equal(np.stack(got), np.stack(wanted))
        assert np.isfinite(got).all()
    assert engine.stats.preemptions > 0
    engine.close()


def test_poison_in_a_page_that_is_held_shows(kernels):
    """The test above can fail: the last page that the window still reaches, spoilt."""
    engine = Engine(GPT_OSS, kernels, kv_tokens=512, max_tokens_per_step=90, text=False, prefix_cache=False)
    engine.add(text(300), GREEDY)
    rows: list[np.ndarray] = []
    engine.on_logits = lambda sequence, _, logits: rows.append(logits.copy())
    while not rows:
        engine.step()
    table = engine._scheduler.running[0].tables[1]
    assert (table.first, len(table.held)) == (first_page(128, 300, PAGE), 3)
    engine._runner.buffers._keys[0, table.held[0]] = np.nan
    engine.step()
    assert np.isfinite(rows[0]).all() and np.isnan(rows[1]).any()
    engine.close()


@pytest.mark.parametrize("model, layers", [(GPT_OSS, 1), (WINDOWED, 2)], ids=["every second layer", "all layers"])
def test_a_long_text_holds_a_window_of_pages_in_layers_that_see_no_more(kernels, model, layers):
    """Beside what one table for all layers held: every page, in both layers."""
    engine, n = Engine(model, kernels, kv_tokens=2048, max_sequences=1, text=False), 1500
    engine.add(text(n), GREEDY)
    outputs = 0
    while outputs < 40:
        outputs += len(engine.step())
    position, window = n + 39, model.config.windows[0]
    pages = -(-position // PAGE)
    windowed = pages - (position - window + 1) // PAGE
    assert engine.pages_in_use == windowed + (pages if layers == 1 else 0)
    after = engine.pages_in_use * page_bytes(model.config, PAGE, "f16")
    before = pages * PAGE * model.config.kv_bytes_per_token("f16")
    assert after / before == (windowed / pages if layers == 2 else (pages + windowed) / (2 * pages))
    assert after / before == pytest.approx(0.56 if layers == 1 else 0.08), "of 25 pages 3 are seen, or 2"
    engine.close()


def test_a_gpt_oss_at_its_longest_context_needs_half_the_memory():
    """By arithmetic: one sequence of 131072 tokens in 24 layers, 12 of which see 128 positions."""
    config = SHAPES["gpt-oss-20b"]
    layout = CacheLayout.of(config)
    assert (layout.windows, layout.depth) == ((0, 128), 12)
    plan = CachePlan.of(layout.windows, 2048, PAGE, max_sequences=1, max_tokens=512)
    assert plan == CachePlan(2048 + (3 + 8), 131_072)
    after, before = plan.pages * page_bytes(config, PAGE, "f16"), 131_072 * config.kv_bytes_per_token("f16")
    assert after / before == 2059 / 4096


def test_layers_are_grouped_by_how_far_they_see():
    layout = CacheLayout.of(replace(CONFIG, layers=7, windows=(40, 0, 8)))
    assert layout == CacheLayout((0, 8, 40), groups=(2, 0, 1, 2, 0, 1, 2), places=(0, 0, 0, 1, 1, 1, 2))
    assert layout.depth == 3, "places of the group with the most layers"
    assert CacheLayout.of(CONFIG) == CacheLayout((0,), (0, 0), (0, 1))


def test_the_most_pages_are_what_some_alignment_needs():
    page = 4
    for window in range(1, 14):
        for queries in range(1, 14):
            touched = [(first + queries - 1) // page - first_page(window, first, page) + 1 for first in range(5 * page)]
            assert most_pages(window, queries, page) == max(touched)


def test_a_pool_has_no_more_for_windows_than_for_the_whole_text():
    assert CachePlan.of((0,), 256, PAGE, 64, 512) == CachePlan(256, 256 * PAGE)
    assert CachePlan.of((0, 128), 256, PAGE, 64, 512) == CachePlan(256 + 64 * 3 + 8, 256 * PAGE)
    assert CachePlan.of((0, 128), 100, PAGE, 64, 512) == CachePlan(200, 100 * PAGE)
    assert CachePlan.of((4096,), 4096, PAGE, 1, 512) == CachePlan(65 + 8, ANY_LENGTH), "a fiftieth, and any length"
    assert CachePlan.of((4096,), 16, PAGE, 1, 512) == CachePlan(16, 16 * PAGE), "shorter than a window"


def test_a_text_may_be_longer_than_a_cache_of_windows(kernels):
    engine = Engine(WINDOWED, kernels, kv_tokens=320, max_sequences=1, max_tokens_per_step=200, text=False)
    assert engine.limits.pages == 5 and engine.limits.context == 2048
    large = Engine(WINDOWED, kernels, kv_tokens=2048, max_sequences=1, max_tokens_per_step=200, text=False)
    prompt = text(400)
    assert engine.generate([prompt], GREEDY)[0].tokens == large.generate([prompt], GREEDY)[0].tokens
    np.testing.assert_array_equal(engine.logits(prompt), large.logits(prompt))
    for made in (engine, large):
        assert made.pages_in_use == 0
        made.check_integrity()
        made.close()


def test_what_is_found_is_as_long_as_every_group_knows_and_changes_no_bit(kernels):
    engine = Engine(GPT_OSS, kernels, kv_tokens=512, max_sequences=2, max_tokens_per_step=128, text=False)
    prompt, short = text(400), SamplingParams(max_tokens=3, ignore_eos=True)
    wanted = {n: np.stack(said(engine, [prompt[:n]], params=short)[0]) for n in (400, 270)}
    for before, length, hit in ((400, 400, 384), (400, 270, 256), (270, 400, 256)):
        engine.forget_prefixes()
        said(engine, [prompt[:before]], params=short)
        found = engine.stats.prefix_hit_tokens
        np.testing.assert_array_equal(np.stack(said(engine, [prompt[:length]], params=short)[0]), wanted[length])
        assert engine.stats.prefix_hit_tokens - found == hit
    engine.close()


def test_a_draft_model_with_windows_guesses_what_it_says_itself(kernels):
    """Exact kernels: one wrong key or value in the draft's cache, and a guess differs."""
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    plain = Engine(GPT_OSS, kernels, kv_tokens=512, max_sequences=2, text=False)
    always = DraftModel(GPT_OSS, policy=CheckAll())
    guessing = Engine(GPT_OSS, kernels, kv_tokens=512, max_sequences=2, text=False, speculate=always)
    prompts = [text(70), text(200, 1)]
    assert [c.tokens for c in guessing.generate(prompts, params)] == [c.tokens for c in plain.generate(prompts, params)]
    assert guessing.stats.accepted_tokens == guessing.stats.drafted_tokens > 100
    guessing.check_integrity()
    for engine in (plain, guessing):
        engine.close()


def test_torch_reads_no_page_that_was_given_back():
    model = ToyModel(replace(CONFIG, windows=(40, 0), sinks=True))
    engine = Engine(model, "none", kv="f32", kv_tokens=256, max_tokens_per_step=90, text=False, prefix_cache=False)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    wanted = engine.generate([text(100)], params)[0].tokens
    engine.add(text(100), params)
    tokens = []
    while not engine.idle:
        tokens += [o.token for o in engine.step()]
        free = free_pages(engine)
        for part in engine._runner._cache._parts:
            part[:, free] = np.nan
    assert tuple(tokens) == wanted
    engine.close()
