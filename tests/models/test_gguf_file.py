from __future__ import annotations

import random
import struct

import gguf
import numpy as np
import pytest

from kforge.core.errors import KforgeError
from kforge.models import load
from kforge.models.gguf_file import tensor_name
from kforge.models.gguf_header import read_header
from kforge.models.roles import Matrix, Vector, roles_of, shape_of
from kforge.models.synth_bytes import random_bytes

FORMATS = ["q4_0", "q4_1", "q8_0", "q4_k_m", "bf16", "f16"]


def rewrite(path, out, *, drop=(), rename_arch=None, types=None, shapes=None, fields=None):
    """A copy of a tiny file with tensors left out, or with other types, shapes or metadata."""
    header = read_header(path)
    arch = rename_arch or header.fields["general.architecture"]
    writer = gguf.GGUFWriter(out, arch)
    for key, value in {**header.fields, **(fields or {})}.items():
        if key == "general.architecture":
            continue
        key = key.replace("llama.", f"{arch}.") if key.startswith("llama.") else key
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    for name, info in header.tensors.items():
        if name in drop:
            continue
        shape, kind = (shapes or {}).get(name, info.shape), (types or {}).get(name, info.type)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros(int(np.prod(shape)) // block * size, np.uint8)
        if shape == info.shape and kind == info.type:
            raw = np.array(header.data[info.offset:info.offset + info.bytes])
        writer.add_tensor(name, raw, raw_shape=(*shape[:-1], shape[-1] // block * size), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_the_default_model_is_read_as_it_is(smollm2):
    c = smollm2.config
    assert (c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate, c.vocab) == (
        30, 576, 9, 3, 64, 1536, 49152)
    assert c.tied_head and c.rope.theta == 100_000.0 and c.bos_id == 1 and 2 in c.stop_ids
    assert smollm2.format(Matrix.HEAD) == smollm2.format(Matrix.EMBED) == "q8_0"
    assert smollm2.tensor("q", 29).n == 576
    assert smollm2.tensor(Vector.FINAL_NORM).shape == (576,)


def test_the_header_is_that_of_the_gguf_package(tiny):
    theirs = gguf.GGUFReader(tiny("q4_k_m"))
    ours = read_header(tiny("q4_k_m"))
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.fields[key] == field.contents(), key
    assert {t.name: (t.tensor_type, t.data_offset, t.n_bytes) for t in theirs.tensors} == {
        t.name: (t.type, t.offset, t.bytes) for t in ours.tensors.values()}


def test_a_matrix_in_mxfp4_is_read_as_such(tiny, tmp_path):
    name = tensor_name(Matrix.DOWN, 0)
    path = rewrite(tiny("q4_0"), tmp_path / "m.gguf", types={name: gguf.GGMLQuantizationType.MXFP4})
    weight = load(path).tensor(Matrix.DOWN, 0)
    assert weight.format == "mxfp4" and weight.values.shape == read_header(path).tensors[name].shape
    assert (weight.dequantize() == 0).all() and (weight.d == 0).all()


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_is_decoded_as_the_gguf_package_does(tiny, file_format):
    model = load(tiny(file_format))
    tensors = {t.name: t for t in gguf.GGUFReader(tiny(file_format)).tensors}
    for ref in roles_of(model.config):
        theirs = tensors[tensor_name(ref.role, ref.layer)]
        wanted = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
        ours = model.tensor(ref.role, ref.layer)
        ours = ours if isinstance(ref.role, Vector) else ours.dequantize()
        assert ours.shape == shape_of(model.config, ref.role)
        np.testing.assert_array_equal(ours, wanted)


def test_q5_k_is_read(tiny, tmp_path):
    name = "blk.1.ffn_up.weight"
    path = rewrite(tiny("q4_k_m"), tmp_path / "q5.gguf", types={name: gguf.GGMLQuantizationType.Q5_K})
    info = read_header(path).tensors[name]
    raw = random_bytes(np.random.default_rng(0), load(path).format(Matrix.UP, 1), 512 * 256, 256)
    with path.open("r+b") as file:
        file.seek(info.offset)
        file.write(raw.tobytes())
    wanted = gguf.quants.dequantize(raw.reshape(512, -1), gguf.GGMLQuantizationType.Q5_K)
    np.testing.assert_array_equal(load(path).tensor(Matrix.UP, 1).dequantize(), wanted)


def test_rope_factors_of_the_file_are_used(tiny):
    assert len(load(tiny("f16")).config.rope.divisors) == 32


def test_a_special_token_outside_the_vocabulary_counts_as_none(tiny, tmp_path):
    path = rewrite(tiny("q4_0"), tmp_path / "ids.gguf", fields={"tokenizer.ggml.bos_token_id": 5000})
    model = load(path)
    assert model.config.bos_id is None
    assert max(model.tokenizer.encode("hi", add_bos=True)) < model.config.vocab


@pytest.mark.parametrize(("change", "words"), [
    ({"rename_arch": "mamba"}, ["family 'mamba'"]),
    ({"drop": ("blk.1.attn_k.weight",)}, ["blk.1.attn_k.weight", "missing"]),
    ({"drop": ("token_embd.weight",)}, ["token_embd.weight", "missing"]),
    ({"types": {"blk.0.ffn_up.weight": gguf.GGMLQuantizationType.Q3_K}}, ["blk.0.ffn_up.weight", "Q3_K"]),
    ({"shapes": {"blk.0.attn_q.weight": (128, 256)}}, ["blk.0.attn_q.weight", "[128, 256]", "[256, 256]"]),
    ({"fields": {"llama.attention.head_count": 0}}, ["head_count"]),
    ({"fields": {"llama.attention.head_count_kv": 3}}, ["4 heads", "3 key"]),
    ({"fields": {"llama.expert_count": 8}}, ["experts"]),
    ({"fields": {"llama.rope.scaling.type": "yarn"}, "drop": ("rope_freqs.weight",)}, ["yarn"]),
])
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence(tiny, tmp_path, change, words):
    path = rewrite(tiny("q4_0"), tmp_path / "bad.gguf", **change)
    with pytest.raises(KforgeError) as error:
        load(path)
    text = str(error.value)
    assert str(path) in text
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_not_a_gguf_file(tmp_path):
    path = tmp_path / "x.gguf"
    with pytest.raises(KforgeError, match="neither a file, a folder, nor"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(KforgeError, match=r"x\.gguf"):
        load(path)
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(KforgeError, match="not a GGUF file"):
        load(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(KforgeError, match="version 1"):
        load(path)


def test_a_truncated_file_is_refused_wherever_it_ends(tiny, tmp_path):
    whole = tiny("q4_0").read_bytes()
    path = tmp_path / "cut.gguf"
    rng = random.Random(0)
    for size in [4, 8, 20, 24, *(rng.randrange(24, len(whole)) for _ in range(60)), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(KforgeError, match=r"cut\.gguf"):
            load(path)


def test_damaged_headers_never_end_in_anything_but_a_sentence(tiny, tmp_path):
    whole = bytearray(tiny("q4_0").read_bytes())
    path = tmp_path / "damaged.gguf"
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 4])):
            damaged[rng.randrange(4, 2000)] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            load(path)
        except KforgeError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50
