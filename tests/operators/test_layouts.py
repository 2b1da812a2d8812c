"""Weights: decoding as gguf does, and the panel layout to the byte."""

import ctypes

import gguf
import numpy as np
import pytest
from operators_cpp import open_probe, pointer

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.operators import layouts
from kforge.operators.weights import from_int8_channel

FORMATS = list(WeightFormat)
INTEGERS = [f for f in FORMATS if f.quantized]
IN_GGUF = [f for f in FORMATS if not f.traits.row_scale]


def gguf_bytes(format, n, k, seed):
    """Valid random content of a GGUF tensor: any integers, scales that are ordinary float16."""
    rng = np.random.default_rng(seed)
    t = format.traits
    if not format.quantized:
        values = rng.standard_normal((n, k)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[format.name])
    blocks = rng.integers(0, 256, (n * k // t.file_block, t.file_bytes), dtype=np.uint8)
    if t.e8m0:
        blocks[:, 0] = rng.integers(0, 254, len(blocks))  # the smallest give denormal numbers, 255 none
        return blocks
    places = {"q8_0": [0], "q4_0": [0], "q4_1": [0, 2], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208]}[format.value]
    for place in places:
        blocks[:, place:place + 2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks


@pytest.mark.parametrize("format", IN_GGUF)
def test_dequantize_equals_gguf_to_the_bit(format):
    n, k = 37, 512
    raw = gguf_bytes(format, n, k, 3)
    qtype = gguf.GGMLQuantizationType[format.name]
    want = gguf.quants.dequantize(raw.view(np.uint8) if format is not WeightFormat.F32 else raw, qtype).reshape(n, k)
    got = layouts.from_gguf(raw, format, n, k).dequantize()
    assert got.dtype == np.float32
    assert (got.view(np.uint32) == want.astype(np.float32).view(np.uint32)).all()
    assert layouts.from_gguf(raw.tobytes(), format, n, k).dequantize().tobytes() == got.tobytes()


@pytest.mark.parametrize("format", IN_GGUF)
def test_truncated_weight_names_the_format(format):
    raw = gguf_bytes(format, 4, 256, 3)
    with pytest.raises(KforgeError, match=format.value):
        layouts.from_gguf(raw.tobytes()[:-1], format, 4, 256)


def k_of(format):
    return 512 if format.traits.superblock else 96 if format.quantized else 71


@pytest.mark.parametrize("rows,gate_up", [(16, False), (32, False), (64, False), (32, True), (64, True)])
@pytest.mark.parametrize("format", FORMATS)
def test_pack_round_trip_and_the_header_agree(format, rows, gate_up):
    """unpack gives back every stored bit; kf::panel::value, written from the same document, reads the same weights."""
    k, layout = k_of(format), layouts.panel_layout(rows, gate_up)
    for n in (1, 16, 37, 150):
        n *= 2 if gate_up else 1
        weight = layouts.random(format, n, k, seed=n)
        data = layouts.pack(weight, layout)
        assert data.size == layouts.packed_bytes(format, n, k, layout)
        back = layouts.unpack(data, format, n, k, layout)
        for sent, got in zip(weight.arrays(), back.arrays(), strict=True):
            assert sent.dtype == got.dtype and sent.shape == got.shape
            assert sent.tobytes() == np.ascontiguousarray(got).tobytes()
        out = np.empty((n, k), np.float32)
        sizes = map(ctypes.c_int64, (n, k, rows, gate_up))
        probe = getattr(open_probe("panel_probe", ("-mfma",)), f"values_{format.value}")
        size = probe(pointer(data), *sizes, pointer(out))
        assert size == data.size
        assert (out == weight.dequantize()).all()


@pytest.mark.parametrize("format", FORMATS)
def test_packing_in_chunks_changes_nothing(format, monkeypatch):
    layout = layouts.panel_layout(32, True)
    weight = layouts.random(format, 290, k_of(format), seed=1)
    whole = layouts.pack(weight, layout)
    monkeypatch.setattr(layouts, "_CHUNK_WEIGHTS", 32 * weight.k * 2)
    assert (layouts.pack(weight, layout) == whole).all()
    back = layouts.unpack(whole, format, 290, weight.k, layout)
    assert (back.dequantize() == weight.dequantize()).all()


def test_gate_up_alternates_sixteen_gate_and_up_rows():
    source = layouts.source_rows(40, layouts.panel_layout(32, True))
    assert list(source[:16]) == list(range(16)) and list(source[16:32]) == list(range(20, 36))
    assert list(source[32:36]) == [16, 17, 18, 19] and set(source[36:48]) == {-1}
    assert list(source[48:52]) == [36, 37, 38, 39]


def test_q4_0_bytes_are_those_of_the_document():
    n, k, rows = 32, 64, 32
    weight = layouts.random(WeightFormat.Q4_0, n, k, 5)
    data = layouts.pack(weight, layouts.panel_layout(rows))
    group = 2 * rows + 2 * 256
    for g in range(2):
        block = data[g * group:(g + 1) * group]
        assert (block[:2 * rows].view(np.float16) == weight.d[:, g]).all()
        for tile in range(2):
            vectors = block[2 * rows + 256 * tile:][:256].reshape(4, 16, 4)
            for j, r, i in np.ndindex(4, 16, 4):
                u = weight.values[16 * tile + r, 32 * g:]
                assert vectors[j, r, i] == u[4 * j + i] | u[16 + 4 * j + i] << 4


def test_int8_channel_bytes_are_those_of_the_document():
    n, k, rows = 40, 64, 32
    values = np.random.default_rng(3).integers(-128, 128, (n, k)).astype(np.int8)
    scales = np.random.default_rng(4).random((n, 1), np.float32)
    data = layouts.pack(from_int8_channel(values, scales), layouts.panel_layout(rows))
    panels = data.reshape(2, 4 * rows + 2 * 2 * 512)
    assert (panels[:, :4 * rows].view(np.float32).ravel()[:n] == scales[:, 0]).all()
    words = panels[:, 4 * rows:].reshape(2, 2, 2, 8, 16, 4)  # [panel, group, 16 rows, vector, row, byte]
    u = words.transpose(0, 2, 4, 1, 3, 5).reshape(2 * rows, k)[:n]
    assert (u.astype(int) - 128 == values).all()


@pytest.mark.parametrize(("shape", "scale", "words"), [
    ((4, 48), (4, 1), "multiple of 32"), ((4, 1 << 18), (4, 1), "132096"), ((4, 64), (4, 2), "one scale a row"),
    ((4, 64), (3, 1), "one scale a row")])
def test_int8_weights_that_no_kernel_can_take_are_refused(shape, scale, words):
    with pytest.raises(KforgeError, match=words):
        from_int8_channel(np.zeros(shape, np.int8), np.ones(scale, np.float32))
    with pytest.raises(KforgeError, match="finite"):
        from_int8_channel(np.zeros((2, 32), np.int8), np.array([1, np.nan], np.float32))


@pytest.mark.parametrize("format", INTEGERS)
def test_random_weights_have_every_integer_and_sensible_scales(format):
    weight = layouts.random(format, 64, 1024, seed=9)
    assert len(np.unique(weight.values)) == 2**format.traits.bits
    w = weight.dequantize()
    assert np.isfinite(w).all() and 0.05 < w.std() * 1024**0.5 < 5
    again = layouts.random(format, 64, 1024, seed=9)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(weight.arrays(), again.arrays(), strict=True))


def test_concat_joins_rows_and_refuses_mixed_formats():
    a, b = layouts.random(WeightFormat.Q6_K, 5, 256, 1), layouts.random(WeightFormat.Q6_K, 7, 256, 2)
    joined = layouts.concat([a, b])
    assert (joined.dequantize() == np.concatenate([a.dequantize(), b.dequantize()])).all()
    with pytest.raises(ValueError, match="q6_k"):
        layouts.concat([a, layouts.random(WeightFormat.Q4_K, 7, 256, 2)])
