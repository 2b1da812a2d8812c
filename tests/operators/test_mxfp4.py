"""mxfp4: both file layouts, quantisation, and what no file should hold."""

import gguf
import numpy as np
import pytest

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.operators import layouts
from kforge.operators.weights import from_mxfp4_blocks, quantize_mxfp4

MXFP4 = WeightFormat.MXFP4
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def test_codes_are_4_bit_floats_and_scales_powers_of_two():
    block = bytes([127 + 3, *(low | 15 - low << 4 for low in range(16))])
    weight = layouts.from_gguf(block, MXFP4, 1, 32)
    signed = np.concatenate([VALUES, -VALUES])
    assert weight.dequantize()[0].tolist() == [*(8 * signed), *(8 * signed[::-1])]
    assert weight.scales().tolist() == [[4.0]] and weight.signed()[0, :8].tolist() == [0, 1, 2, 3, 4, 6, 8, 12]


def test_the_smallest_scales_are_denormal_numbers():
    tiny = [layouts.from_gguf(bytes([e, 1, *([0] * 15)]), MXFP4, 1, 32).dequantize()[0, 0] for e in range(4)]
    assert tiny == [2.0**-128, 2.0**-127, 2.0**-126, 2.0**-125]


def test_files_of_both_kinds_give_the_same_weight():
    """safetensors: experts as leading dimensions, and each byte holds neighbours; GGUF: k and k + 16."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (3, 10, 4, 32), dtype=np.uint8)
    scales = rng.integers(100, 140, (3, 10, 4), dtype=np.uint8)
    adjacent = codes[..., 0::2] | codes[..., 1::2] << 4
    apart = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], axis=-1)
    ours, theirs = from_mxfp4_blocks(adjacent, scales), layouts.from_gguf(apart, MXFP4, 30, 128)
    assert ours.values.shape == (30, 128) and (ours.values == codes.reshape(30, 128)).all()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(ours.arrays(), theirs.arrays(), strict=True))


def test_shapes_that_do_not_belong_together_are_told():
    blocks = np.zeros((4, 2, 16), np.uint8)
    with pytest.raises(KforgeError, match=r"\[4, 2, 16\] and \[4, 3\]"):
        from_mxfp4_blocks(blocks, np.zeros((4, 3), np.uint8))
    with pytest.raises(KforgeError, match="groups, 16"):
        from_mxfp4_blocks(blocks[..., :8], np.zeros((4, 2), np.uint8))


def test_a_scale_that_is_no_number_is_refused():
    with pytest.raises(KforgeError, match="255"):
        layouts.from_gguf(bytes([255, *([0] * 16)]), MXFP4, 1, 32)
    with pytest.raises(KforgeError, match="255"):
        from_mxfp4_blocks(np.zeros((1, 1, 16), np.uint8), np.full((1, 1), 255, np.uint8))


def test_quantising_is_what_gguf_does():
    rng = np.random.default_rng(2)
    values = (rng.standard_normal((64, 256)) * 10.0 ** rng.integers(-20, 20, (64, 1))).astype(np.float32)
    values[3, :64] = 0
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.MXFP4)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.MXFP4)
    assert (quantize_mxfp4(values).dequantize() == want).all()


def test_what_the_format_holds_is_kept_and_ties_go_to_the_even_code():
    groups = np.concatenate([VALUES, -VALUES, VALUES, -VALUES]).reshape(1, 32) * np.float32(2.0**-9)
    assert (quantize_mxfp4(groups).dequantize() == groups).all()
    halfway = np.zeros((1, 32), np.float32)
    halfway[0, :9] = [4, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -2.5]
    assert quantize_mxfp4(halfway).dequantize()[0, :9].tolist() == [4, 0, 1, 1, 2, 2, 4, 4, -2]
    large = np.full((1, 32), 7.9, np.float32)
    assert (quantize_mxfp4(large).dequantize() == 6).all(), "too large for the largest: no next exponent"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_no_code_stands_for_is_refused(value):
    with pytest.raises(KforgeError, match="NaN or an infinity"):
        quantize_mxfp4(np.full((1, 32), value, np.float32))
    with pytest.raises(KforgeError, match="multiple of 32"):
        quantize_mxfp4(np.zeros((2, 33), np.float32))
