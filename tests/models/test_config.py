from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kforge.models.config import Rope, RopeScaling, RopeStyle, rope_tables
from kforge.models.synth_plan import SHAPES

CONFIG = SHAPES["llama-3.2-1b"]


def hugging_face_frequencies(kind: str, theta: float, **parameters: float) -> np.ndarray:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(hidden_size=2048, num_attention_heads=32, head_dim=64,
                         rope_parameters={"rope_type": kind, "rope_theta": theta, **parameters})
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu")[0].numpy()


def test_llama3_scaling_is_that_of_transformers():
    theirs = hugging_face_frequencies("llama3", 500_000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                      original_max_position_embeddings=8192)
    np.testing.assert_allclose(CONFIG.rope.frequencies(64), theirs, rtol=1e-6)


def test_linear_scaling_is_that_of_transformers():
    rope = Rope(10_000.0, RopeStyle.NEOX, RopeScaling.LINEAR, 4.0)
    theirs = hugging_face_frequencies("linear", 10_000.0, factor=4.0)
    np.testing.assert_allclose(rope.frequencies(64), theirs, rtol=1e-6)


def test_divisors_of_a_file_replace_the_rule():
    plain = Rope(500_000.0, RopeStyle.NORM)
    scaled = CONFIG.rope.frequencies(64)
    divisors = tuple(p / s for p, s in zip(plain.frequencies(64), scaled, strict=True))
    np.testing.assert_allclose(replace(plain, divisors=divisors).frequencies(64), scaled, rtol=1e-12)


def test_tables_are_rounded_once_from_float64():
    tables = rope_tables(CONFIG, 3000)
    assert tables.cos.shape == tables.sin.shape == (3000, 32)
    assert tables.cos.dtype == np.float32
    angle = np.float64(2999) * CONFIG.rope.frequencies(64)[5]
    assert tables.cos[2999, 5] == np.float32(np.cos(angle))
    assert tables.sin[2999, 5] == np.float32(np.sin(angle))


@pytest.mark.parametrize("name", SHAPES)
def test_heads_divide_evenly(name):
    config = SHAPES[name]
    assert config.heads % config.kv_heads == 0
    assert config.kv_bytes_per_token("f16") == 4 * config.layers * config.kv_heads * config.head_dim
    assert config.kv_bytes_per_token("i8") == 2 * config.layers * config.kv_heads * (config.head_dim + 4)
