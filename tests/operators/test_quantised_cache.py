"""A cache of int8: what a writer may leave, and what a reader must notice."""

import numpy as np
import pytest
from operator_problems import attention, ratio, rope

from kforge import operators
from kforge.core.dtypes import DType
from kforge.operators import Distribution
from kforge.operators.kv_cache import KvProblem
from kforge.operators.kv_quantised import quantised, written

EVERY = list(Distribution)
_SHOWS_NO_POSITION = (Distribution.EQUAL, Distribution.NAN, Distribution.INFINITE)


def case(workload, distribution=Distribution.NORMAL):
    operator = operators.get(workload.problem.operator)
    inputs = operator.inputs(workload, 1, distribution)
    return operator, inputs, operator.reference(workload, inputs)


@pytest.mark.parametrize("distribution", [d for d in EVERY if d not in (*_SHOWS_NO_POSITION, Distribution.DENORMAL)])
@pytest.mark.parametrize("operator_name", ["rope_kv_write", "qk_norm_rope_kv_write"])
def test_mistakes_in_quantised_positions_are_caught(operator_name, distribution):
    """What is written is half a quantum from the quotient at most: the other neighbour, scales of others, a smaller
    range and a scale that does not belong to its integers are none of it."""
    workload = rope("i8", "norm", operator_name)
    operator, inputs, reference = case(workload, distribution)
    good = operator.spec(workload, inputs)
    for part in "kv":
        cache, scale = f"{part}_cache", f"{part}_scale"
        integers, scales = good[cache].astype(np.int16), good[scale]
        other = np.where(reference[cache].reference > integers, integers + 1, integers - 1)
        assert ratio(reference[cache], other, DType.I8) > 1
        if distribution is not Distribution.ONE_HOT:  # whose quotients are whole
            assert ratio(reference[cache], np.trunc(reference[cache].reference), DType.I8) > 1
        assert ratio(reference[cache], integers * (126 / 127), DType.I8) > 1
        for wrong in (scales * np.float32(127 / 128), np.roll(scales, 1, axis=1), np.roll(scales, 1, axis=2)):
            assert ratio(reference[scale], wrong, DType.F32) > 1
        assert ratio(reference[cache], good[cache], DType.I8) <= 1 >= ratio(reference[scale], scales, DType.F32)


def test_both_neighbours_of_a_tie_are_right_and_tiny_positions_are_zeros():
    x = np.full((1, 4), 127.0)
    x[0, 1:3] = 2.5, 3.0000001
    integers, scales = written(np.vstack([x, x * 1e-33, x * np.nan]), np.full((3, 4), 1e-8) * [[1], [1e-33], [1]])
    for tie in (2, 3):
        assert abs(integers.reference[0, 1] - tie) <= integers.bound[0, 1]
    assert abs(integers.reference[0, 2] - 4) > integers.bound[0, 2]
    assert not integers.reference[1].any() and not integers.bound[1].any() and not integers.free[1].any()
    assert scales.reference[1] == pytest.approx(1e-33) and np.isnan(scales.reference[2]) and integers.free[2].all()


def test_inputs_are_nearest_to_their_values_even_where_these_are_denormal():
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    for size in (1, 1e-30, 1e-39):
        integers, scales = quantised(x * np.float32(size), axis=1)
        off = np.abs(integers * scales[:, None].astype(np.float64) - x * np.float32(size))
        assert (off <= 0.5001 * scales[:, None]).all() and (np.abs(integers).max(axis=1) >= 126).all()


@pytest.mark.parametrize("distribution", [d for d in EVERY if d not in _SHOWS_NO_POSITION])
def test_reading_beyond_or_short_of_the_context_and_scales_of_others_are_caught(distribution):
    workload = attention("i8")
    operator, inputs, reference = case(workload, distribution)

    def wrong(**changed):
        return ratio(reference["out"], operator.spec(workload, inputs | changed)["out"], DType.F32)

    assert wrong() < 0.5
    longest = int(inputs["context"].argmax())
    for change in (1, -1):
        context = inputs["context"].copy()
        context[longest] += change
        assert wrong(context=context) > 1, change
    assert wrong(v_scale=np.roll(inputs["v_scale"], 1, axis=1)) > 1
    assert wrong(v_scale=inputs["v_scale"] * np.float32(1.001)) > 1
    if distribution is not Distribution.TINY:  # all scores are 0 there, but for what no float32 shows
        assert wrong(k_scale=np.roll(inputs["k_scale"], 1, axis=2)) > 1


def test_scales_of_unused_slots_are_poison():
    workload = attention("i8")
    _, inputs, _ = case(workload)
    used = np.zeros(inputs["v_scale"].shape, bool)
    for pages, length in zip(inputs["block_table"], inputs["context"], strict=True):
        for j in range(length):
            used[pages[j // 32], :, j % 32] = True
    for part in "kv":
        assert (np.isnan(inputs[f"{part}_scale"]) == ~used).all()
    assert not np.isfinite(KvProblem.of(workload.problem).widened(inputs)[0].transpose(0, 1, 3, 2)[~used]).any()
