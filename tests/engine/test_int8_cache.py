"""A KV cache of int8: kernels beside torch, bits that do not depend on the schedule, memory, the command line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_model import CONFIG, ToyModel

from kforge.core.dtypes import WeightFormat as F
from kforge.core.errors import KforgeError
from kforge.engine.engine import Engine
from kforge.engine.request import SamplingParams
from kforge.engine.runner import RunnerOptions
from kforge.models.config import Family, Rope, RopeStyle

MODEL = ToyModel(rest=F.Q8_0)
NORMED = ToyModel(replace(CONFIG, family=Family.QWEN3, qk_norm=True, rope=Rope(10000.0, RopeStyle.NEOX)), rest=F.Q8_0)
WINDOWED = ToyModel(replace(CONFIG, sinks=True, windows=(0, 40)), rest=F.Q8_0)
TOKENS = [(37 * i) % 320 for i in range(150)]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def eight(kernels):
    return Engine(MODEL, kernels, kv="i8", kv_tokens=1024, text=False, max_sequences=16)


@pytest.mark.parametrize("model", [MODEL, *(pytest.param(m, marks=pytest.mark.slow) for m in (NORMED, WINDOWED))],
                         ids=["plain", "norms", "windows and sinks"])
def test_kernels_and_torch_agree(model, kernels):
    """Both quantise what differs in its last bits, so now and then one takes the other neighbour of a tie: a quantum,
    1/127 of an element, in one of thousands. Against float32 every element is off by half of one at most."""
    native = Engine(model, kernels, act="f32", kv="i8", kv_tokens=256, text=False)
    wide = Engine(model, kernels, act="f32", kv="f32", kv_tokens=256, text=False)
    torch = Engine(model, "none", kv="i8", kv_tokens=256, text=False)
    ours, theirs, exact = native.logits(TOKENS, 50), torch.logits(TOKENS, 64), wide.logits(TOKENS, 50)
    apart, lost = (np.sqrt(np.square(x - ours).mean() / np.square(exact).mean()) for x in (theirs, exact))
    assert 0 < 10 * apart < lost < 0.05


def test_chunks_batch_and_shared_pages_change_no_bit(eight, kernels):
    wanted = eight.logits(TOKENS, 50).view(np.int32)
    narrow = Engine(MODEL, kernels, kv="i8", kv_tokens=1024, text=False, threads=1)
    for engine, chunk in ((eight, 7), (narrow, 1)):
        np.testing.assert_array_equal(engine.logits(TOKENS, chunk).view(np.int32), wanted)
    prompts = [TOKENS[:130], TOKENS[:70], TOKENS[:131], TOKENS[5:20]]
    alone = []
    for prompt in prompts:
        eight.forget_prefixes()
        alone.append(eight.generate([prompt], GREEDY)[0].tokens)
    eight.forget_prefixes()
    before = eight.stats.prefix_hit_tokens
    assert [c.tokens for c in eight.generate(prompts, GREEDY)] == alone
    assert [c.tokens for c in eight.generate(prompts, GREEDY)] == alone
    assert eight.stats.prefix_hit_tokens > before


def test_a_tiny_pool_preempts_and_still_says_the_same(eight, kernels):
    texts = [[(7 * i + j) % 320 for j in range(60)] for i in range(4)]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    small = Engine(MODEL, kernels, kv="i8", kv_tokens=4 * 64, text=False, max_sequences=8)
    assert [c.tokens for c in small.generate(texts, params)] == [c.tokens for c in eight.generate(texts, params)]
    assert small.stats.preemptions > 0


@pytest.mark.slow
def test_kernels_in_a_process_of_their_own_give_the_same_bits(eight, kernels):
    apart = Engine(MODEL, kernels, kv="i8", kv_tokens=256, text=False, isolate=True)
    np.testing.assert_array_equal(apart.logits(TOKENS, 50).view(np.int32), eight.logits(TOKENS, 50).view(np.int32))
    apart.close()


def test_a_position_takes_half_the_memory_and_its_scales(kernels):
    assert CONFIG.kv_bytes_per_token("i8") == CONFIG.kv_bytes_per_token("f16") * (64 + 4) // 128
    with pytest.raises(KforgeError, match="memory"):
        Engine(MODEL, kernels, kv="i8", kv_tokens=10**13, text=False)


def test_other_integers_are_refused():
    with pytest.raises(KforgeError, match="i8"):
        RunnerOptions(None, "i4", "a8", None, "f32")
