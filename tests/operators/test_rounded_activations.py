"""``act = bf16``: activations are rounded to bf16, and everything else is as with f32."""

import numpy as np
import pytest
from operator_problems import linear, moe_linear, ratio

from kforge.core.dtypes import DType
from kforge.operators import get
from kforge.operators.base import Distribution
from kforge.operators.numerics import rounded_bf16


@pytest.mark.parametrize("make", [linear, moe_linear])
@pytest.mark.parametrize("weight", ["q4_0", "bf16", "int8_channel"])
def test_it_is_an_f32_product_of_rounded_activations(make, weight):
    rounded, whole = make(weight, "bf16"), make(weight, "f32")
    operator = get(rounded.problem.operator)
    for distribution in (Distribution.NORMAL, Distribution.DENORMAL, Distribution.NAN):
        inputs = operator.inputs(rounded, 3, distribution)
        got = operator.spec(rounded, inputs)["out"]
        want = operator.spec(whole, {**inputs, "x": rounded_bf16(inputs["x"])})["out"]
        assert got.tobytes() == want.tobytes()
        assert ratio(operator.reference(rounded, inputs)["out"], got, DType.F32) <= 1


def test_activations_that_are_not_rounded_are_beyond_the_bound():
    workload = linear("q4_0", "bf16")
    operator = get("linear")
    inputs = operator.inputs(workload, 3, Distribution.NORMAL)
    unrounded = operator.spec(linear("q4_0", "f32"), inputs)["out"]
    assert ratio(operator.reference(workload, inputs)["out"], unrounded, DType.F32) > 1


def test_halves_go_to_the_even_neighbour():
    x = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 2.0**-134, np.nan, -np.inf], np.float32)
    assert np.array_equal(rounded_bf16(x), np.array([1, 1 + 2.0**-6, -1, 0, np.nan, -np.inf], np.float32),
                          equal_nan=True)


def test_other_activations_are_refused():
    with pytest.raises(ValueError, match="act is a8, f32 or bf16"):
        get("linear").tensors(linear("q4_0", "f16"))
