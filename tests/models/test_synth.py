from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.graph import step_calls
from kforge.models.roles import Matrix, Vector, roles_of
from kforge.models.synth import synth
from kforge.models.synth_bytes import random_bytes
from kforge.models.synth_plan import SHAPES, FileFormat, SynthPlan, plan, storable
from kforge.models.synth_vocab import synth_vocab
from kforge.operators.layouts import from_gguf

# What llama.cpp's llama_model_quantize made of a model with 28 layers and a tied head: layers whose attn_v and ffn_down
# are Q6_K in a Q4_K_M file.
MORE_BITS_OF_28 = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}


@pytest.mark.parametrize("file_format", FileFormat)
def test_the_file_holds_what_was_planned(tiny, file_format):
    model, planned = load(tiny(file_format)), plan("tiny-llama-test", file_format)
    for ref in roles_of(model.config):
        if isinstance(ref.role, Matrix):
            assert model.format(ref.role, ref.layer) == planned.format(ref.role, ref.layer)
    assert [c.problem for c in step_calls(model)] == [c.problem for c in step_calls(planned)]


def test_types_are_those_of_llama_cpp_s_quantiser():
    mixed = SynthPlan(replace(SHAPES["llama-3.2-3b"]), FileFormat.Q4_K_M)
    for role in (Matrix.V, Matrix.DOWN):
        assert {i for i in range(28) if mixed.format(role, i) is WeightFormat.Q6_K} == MORE_BITS_OF_28
    assert mixed.format(Matrix.Q, 0) is WeightFormat.Q4_K
    assert mixed.format(Matrix.HEAD) is mixed.format(Matrix.EMBED) is WeightFormat.Q6_K
    untied = plan("llama-3.1-8b", "q4_k_m")
    assert untied.format(Matrix.HEAD) is WeightFormat.Q6_K and untied.format(Matrix.EMBED) is WeightFormat.Q4_K
    assert plan("llama-3.1-8b", "q8_0").format(Matrix.HEAD) is WeightFormat.Q8_0
    odd = SynthPlan(replace(SHAPES["tiny-llama-test"], hidden=576), FileFormat.Q4_1)
    assert odd.format(Matrix.HEAD) is WeightFormat.Q8_0, "576 is no multiple of 256"
    assert plan("qwen3-0.6b", "bf16").format(Matrix.EMBED) is WeightFormat.BF16


def test_shapes_whose_rows_a_format_cannot_hold_are_told():
    found = {f for f in FileFormat if storable(SHAPES["gpt-oss-20b"], f)}
    assert found == set(FileFormat) - {FileFormat.Q4_K_M, FileFormat.W8A8}, "2880 is no multiple of 256"
    with pytest.raises(KforgeError, match="2880"):
        plan("gpt-oss-20b", "q4_k_m").format(Matrix.Q, 0)
    assert plan("gpt-oss-20b", "q4_0").format(Matrix.HEAD) is WeightFormat.Q8_0
    assert plan("qwen3-30b-a3b", "mxfp4_moe").format(Matrix.EXPERT_DOWN, 0) is WeightFormat.MXFP4


@pytest.mark.parametrize("format", [f for f in WeightFormat if f is not WeightFormat.F32 and not f.traits.row_scale])
def test_weights_keep_activations_finite(format):
    raw = random_bytes(np.random.default_rng(0), format, 64 * 2048, 2048)
    weights = from_gguf(raw, format, 64, 2048).dequantize()
    assert np.isfinite(weights).all()
    assert 0.5 < weights.std() * 2048**0.5 < 1.5
    assert abs(weights.mean()) < 0.2 * weights.std()


def test_a_seed_says_every_byte(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        synth("tiny-llama-test", "q4_k_m", path, layers=1, seed=seed)
    a, b, c = (path.read_bytes() for path in paths)
    assert a == b != c
    assert load(paths[0]).config.layers == 1


def test_the_vocabulary_is_a_tokenizer(tiny):
    model = load(tiny("bf16"))
    tokenizer = model.tokenizer
    text = "the quick brown fox 123 Größe\n"
    ids = tokenizer.encode(text, add_bos=False)
    assert tokenizer.decode(ids) == text and len(ids) < len(text.encode())
    assert model.tensor(Vector.FINAL_NORM).tolist() == [1.0] * 256


def test_large_vocabularies_have_no_equal_tokens():
    vocab = synth_vocab(151_936)
    assert len(set(vocab.texts)) == len(vocab.texts) == 151_936


def test_bad_requests_are_named(tmp_path):
    for arguments, words in [(("llama-4", "q4_0"), "llama-4"), (("llama-3.2-1b", "q3_k"), "q3_k"),
                             (("llama-3.2-1b", "q4_0", 17), "16")]:
        with pytest.raises(KforgeError, match=words):
            plan(*arguments)
    (tmp_path / "file").write_text("")
    with pytest.raises(KforgeError, match="cannot be written"):
        synth("tiny-llama-test", "q4_0", tmp_path / "file" / "x.gguf")
