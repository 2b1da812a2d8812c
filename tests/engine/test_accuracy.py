"""The real model beside ``transformers`` in float64, and bits at other points of the templates' spaces.

A subset of ``bench/accuracy.py``, which holds every goal on longer texts and measures llama.cpp beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[2] / "bench"))

from accuracy import bits, divergence, reference, whole
from accuracy.operators import OperatorCheck
from accuracy.points import RandomPoints

from kforge.engine.engine import Engine
from kforge.engine.kernel_set import Overlay
from kforge.models.graph import step_calls

VARIANTS = [("f32", "f32"), ("a8", "bf16"), pytest.param(("a8", "i8"), marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def truth(model):
    return reference.truth(model)


@pytest.fixture(scope="module")
def text(model) -> list[int]:
    return model.tokenizer.encode((whole.DATA / "persuasion.txt").read_text("ascii")[:3000])


@pytest.fixture(scope="module")
def short_trace(truth, model, text):
    return reference.trace(truth, text[:70], model.config.rope.style)


def distances(model, kernels, weights, tokens, trace, variant, layers) -> dict[str, float]:
    """The larger of each call's two distances, in units of its operator's bound."""
    tested = OperatorCheck(model, kernels, weights, tokens, *variant, threads=2)
    results = [tested.run(call, trace) for call in tested.calls(layers)]
    tested.close()
    return {r.label: max(r.kernel, r.reference) if r.kernel == r.kernel else float("inf") for r in results}


@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_operators_of_a_layer_fed_float64_inputs_stay_within_their_bounds(
        model, kernels, weights, text, short_trace, variant):
    found = distances(model, kernels, weights, text[:70], short_trace, variant, range(14, 16))
    assert len(found) >= 19
    assert {label: d for label, d in found.items() if not d <= 1} == {}


def test_a_wrong_permutation_of_heads_would_show(model, kernels, weights, text, short_trace):
    """The check itself: rope in the other style on the same inputs is far outside of the bound."""
    tested = OperatorCheck(model, kernels, weights, text[:70], "f32", "f32", threads=2)
    rope = next(c for c in tested.calls(range(1)) if c.label == "layers.0.rope")
    layer = short_trace.layers[0]
    halves = reference.to_halves(layer.q.T, model.config.head_dim).T
    broken = reference.Trace((type(layer)(**{**vars(layer), "q": halves}),), short_trace.final_norm, short_trace.logits)
    assert tested.run(rope, broken).reference > 1000
    tested.close()


def test_logits_of_the_float_variant_are_as_near_to_float64_as_transformers_in_float32(model, kernels, weights, truth):
    assert pooled_ratio(model, kernels, weights, truth, whole.prompts()[::10]) <= 2


def test_logits_keep_their_bits_with_other_parameters_of_linear_and_attention(model, kernels, weights, native, text):
    points = RandomPoints(kernels.target, seed=5)
    replaced = ("layers.0.qkv", "layers.0.attention")
    keys = [call.problem.key for call in step_calls(model) if call.label in replaced]
    engine = Engine(model, Overlay(kernels, dict.fromkeys(keys, points)), weights=weights, kv_tokens=512)
    wanted = bits.text_bits(native, text[:280], 16)
    for chunk in (1, 64):
        assert bits.differing(bits.text_bits(engine, text[:280], chunk), wanted) == 0
    assert {k.hash for k in engine.kernels_used()} - {k.hash for k in native.kernels_used()}
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_every_operator_of_every_layer_stays_within_its_bound(model, kernels, weights, text, short_trace, variant):
    found = distances(model, kernels, weights, text[:70], short_trace, variant, range(model.config.layers))
    assert len(found) == len(step_calls(model))
    assert {label: d for label, d in found.items() if not d <= 1} == {}


@pytest.mark.slow
def test_a8_diverges_from_float64_by_less_than_a_hundredth_of_a_nat(model, kernels, weights, truth, text):
    engine = Engine(model, kernels, weights=weights, kv_tokens=512, max_sequences=512)
    tallies = divergence.measure([text[:512]], lambda t: reference.logits(truth, t), {"a8": engine.logits})
    engine.close()
    assert tallies["a8"].mean_kl < 0.01
    assert tallies["a8"].perplexity == pytest.approx(tallies["float64"].perplexity, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_logits_keep_their_bits_with_every_kernel_at_a_random_point(
        model, kernels, weights, native, text, prompts, seed):
    points = RandomPoints(kernels.target, seed, rows=(16, 64)[seed])
    engine = Engine(model, points, weights=weights, kv_tokens=1024)
    wanted = bits.text_bits(native, text[:280], 16)
    for chunk in (1, 7, 64):
        assert bits.differing(bits.text_bits(engine, text[:280], chunk), wanted) == 0
    alone = [bits.generated_bits(native, [p], 6)[0] for p in prompts]
    for one, many in zip(alone, bits.generated_bits(engine, prompts, 6), strict=True):
        assert bits.differing(one, many) == 0
    engine.close()


def pooled_ratio(model, kernels, weights, truth, prompts: list[str]) -> float:
    ours = Engine(model, kernels, weights=weights, act="f32", kv="f32", kv_tokens=256)
    theirs = reference.peer(model)
    results = whole.compare([model.tokenizer.encode(p) for p in prompts], lambda t: reference.logits(truth, t),
                            ours.logits, lambda t: reference.logits(theirs, t))
    ours.close()
    return whole.pooled_ratio(results)
