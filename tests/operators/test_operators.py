"""Every operator: its tensors, inputs, both references, cost and buckets agree with one another."""

import random
import subprocess
import sys

import numpy as np
import pytest
from operator_problems import all_workloads, attention, linear, ratio, rms_norm, rope

from kforge import operators
from kforge.core.errors import KforgeError
from kforge.operators import Distribution, Role
from kforge.operators.axes import workload_of
from kforge.operators.numerics import numpy_dtype

WORKLOADS = all_workloads()


def key(workload):
    return workload.key


def outputs(operator, workload):
    return [t for t in operator.tensors(workload) if t.role is not Role.IN]


@pytest.mark.parametrize("workload", WORKLOADS, ids=key)
def test_inputs_follow_the_declaration_and_the_specification_is_inside_the_bound(workload):
    operator = operators.get(workload.problem.operator)
    for distribution in Distribution:
        inputs = operator.inputs(workload, 1, distribution)
        declared = [t for t in operator.tensors(workload) if t.role is not Role.OUT]
        assert [name for name in inputs if name not in operator.scalar_names] == [t.name for t in declared]
        for tensor in declared:
            made = inputs[tensor.name]
            assert made.shape == tensor.shape and made.dtype == numpy_dtype(tensor.dtype) and made.flags.c_contiguous
        before = {name: array.copy() for name, array in inputs.items()}
        reference, spec = operator.reference(workload, inputs), operator.spec(workload, inputs)
        assert all(inputs[name].tobytes() == array.tobytes() for name, array in before.items()), "inputs were modified"
        for tensor in outputs(operator, workload):
            assert reference[tensor.name].reference.shape == tensor.shape == spec[tensor.name].shape
            assert spec[tensor.name].dtype == numpy_dtype(tensor.dtype)
            assert ratio(reference[tensor.name], spec[tensor.name], tensor.dtype) <= 1, distribution


@pytest.mark.parametrize("workload", [linear(), attention(), rms_norm(1), rope("bf16")], ids=key)
def test_inputs_depend_on_the_seed_and_nothing_else(workload):
    operator = operators.get(workload.problem.operator)
    first, same, other = (operator.inputs(workload, seed, Distribution.NORMAL) for seed in (3, 3, 4))
    assert all(first[name].tobytes() == same[name].tobytes() for name in first)
    assert any(first[name].tobytes() != other[name].tobytes() for name in first)


@pytest.mark.parametrize("workload", WORKLOADS, ids=key)
def test_shapes_lie_in_the_bucket_and_the_bucket_is_its_own_point(workload):
    operator = operators.get(workload.problem.operator)
    bucket = operator.bucket(workload.problem, workload.axes)
    assert set(bucket) == set(operator.dynamic_axes)
    assert operator.bucket(workload.problem, bucket) == bucket
    shapes = operator.shapes(workload, 5)
    assert shapes and len({s.key for s in shapes}) == len(shapes)
    for shape in shapes:
        assert operator.bucket(workload.problem, shape.axes) == bucket
        operator.inputs(shape, 1, Distribution.NORMAL)
        assert operator.cost(shape).streamed_bytes + operator.cost(shape).hot_bytes > 0


@pytest.mark.parametrize("window", [0, 128, 3000])
def test_larger_axes_never_get_a_smaller_bucket(window):
    operator, problem = operators.get("paged_attention"), attention(window=window).problem
    for t, s, context in ((1, 1, 1), (5, 2, 300), (8, 8, 4096), (512, 3, 511), (9, 9, 70000)):
        small = {"T": t, "S": s, "B": 1, "pages": 1, "max_context": context}
        for axis in ("T", "S", "max_context"):
            large = small | {axis: small[axis] * 3}
            a, b = operator.bucket(problem, small), operator.bucket(problem, large)
            assert all(a[name] <= b[name] for name in a)


def test_contexts_beyond_what_a_window_lets_queries_see_are_one_bucket():
    operator, problem = operators.get("paged_attention"), attention(window=128).problem

    def bucket(context, t=8, s=8):
        return operator.bucket(problem, {"T": t, "S": s, "B": 1, "pages": 1, "max_context": context})

    assert bucket(256) == bucket(257) == bucket(100_000) and bucket(256)["max_context"] == 256
    assert bucket(300, 512, 1)["max_context"] == 512 and bucket(100_000, 512, 1)["max_context"] == 1024
    at_the_end = attention(window=128, T=8, S=8, B=8, pages=64, max_context=256)
    contexts = [s.axes["max_context"] for s in operator.shapes(at_the_end, 1)]
    assert min(contexts) == 1 and max(contexts) > 256


def test_decode_and_prefill_shapes_stay_what_they_are():
    operator = operators.get("paged_attention")
    decode = attention(T=8, S=8, B=32, pages=256, max_context=1024)
    assert all(s.axes["T"] == s.axes["S"] for s in operator.shapes(decode, 1))
    prefill = attention(T=256, S=1, B=32, pages=32, max_context=1024)
    assert all(s.axes["S"] == 1 and s.axes["T"] > 128 for s in operator.shapes(prefill, 1))


def test_attention_shapes_are_feasible_for_any_workload():
    """Few pages, more queries than fit elsewhere, sequences without queries, windows of any length: inputs can be made,
    inside the bucket."""
    operator, rng = operators.get("paged_attention"), random.Random(0)
    for seed in range(60):
        page, s = rng.choice([16, 32, 128]), rng.choice([1, 2, 3, 8, 13, 60])
        context = rng.choice([1, 17, 256, 300, 700, 1500])
        t = min(s * context, rng.choice([s, s + 3, 64, 200, 512, 700]))
        blocks = -(-context // page)
        window = rng.choice([0, 0, 1, 17, 128, 1000])
        workload = attention("bf16", 2, 1, 2, page, window, seed % 2, T=t, S=s, B=blocks, pages=s * blocks,
                             max_context=context)
        bucket = operator.bucket(workload.problem, workload.axes)
        for shape in (workload, *operator.shapes(workload, seed)):
            assert operator.bucket(workload.problem, shape.axes) == bucket
            inputs = operator.inputs(shape, seed, Distribution.CANCEL)
            assert inputs["query_start"][-1] == shape.axes["T"]
            assert (np.diff(inputs["query_start"]) <= inputs["context"]).all()


def test_costs_of_known_calls():
    """Llama-3.2-1B down projection in q4_0 at batch 1, and 8 sequences of 4096 positions in bf16."""
    cost = operators.get("linear").cost(linear(k=8192, n=2048, m=1))
    assert cost.streamed_bytes == 8192 * 2048 * 18 // 32 and dict(cost.operations) == {"int8_dot": 2 * 8192 * 2048}
    many = attention("bf16", 32, 8, T=8, S=8, B=128, pages=1024, max_context=4096)
    cost = operators.get("paged_attention").cost(many)
    assert cost.streamed_bytes == 8 * 4096 * 2 * 8 * 64 * 2
    eight = attention("i8", 32, 8, T=8, S=8, B=128, pages=1024, max_context=4096)
    assert operators.get("paged_attention").cost(eight).streamed_bytes == 8 * 4096 * 2 * 8 * (64 + 4)
    assert dict(cost.operations) == {"fp32_fma": 4 * 8 * 32 * 64 * 4096}


def test_a_window_costs_what_its_queries_see():
    """GPT-OSS's heads: eight sequences decoding, then a prompt of 300 in which the first queries see less."""
    def cost(window, **axes):
        return operators.get("paged_attention").cost(attention("bf16", 64, 8, page=64, window=window, sinks=1, **axes))

    decode = cost(128, T=8, S=8, B=64, pages=512, max_context=4096)
    assert decode.streamed_bytes == 8 * 128 * 2 * 8 * 64 * 2 and decode.hot_bytes == 4 * 64 * (2 * 8 * 64 + 1)
    assert dict(decode.operations) == {"fp32_fma": 4 * 8 * 64 * 64 * 128}
    prompt = cost(128, T=300, S=1, B=5, pages=5, max_context=300)
    seen = sum(min(position + 1, 128) for position in range(300))
    assert prompt.streamed_bytes == 300 * 2 * 8 * 64 * 2 and dict(prompt.operations) == {"fp32_fma": 4 * 64 * 64 * seen}
    chunk = cost(128, T=100, S=1, B=5, pages=5, max_context=300)
    assert chunk.streamed_bytes == 227 * 2 * 8 * 64 * 2
    assert cost(300, T=300, S=1, B=5, pages=5, max_context=300) == cost(0, T=300, S=1, B=5, pages=5, max_context=300)


def test_sinks_are_a_tensor_in_front_of_the_output():
    def names(**static):
        return [t.name for t in operators.get("paged_attention").tensors(attention(**static))]

    assert names(window=5) == names() and names(sinks=1) == [*names()[:-1], "sinks", "out"]
    for wrong in ({"window": -1}, {"sinks": 2}):
        with pytest.raises(ValueError, match="window is a number"):
            names(**wrong)


def test_a_question_may_leave_window_and_sinks_out():
    def asked(**more):
        axes = {"Hq": 6, "Hkv": 2, "D": 64, "P": 32, "kv": "f32", **attention().axes, **more}
        return workload_of("paged_attention", axes, lambda problem: 0)

    assert asked() == asked(window=0) == asked(window=0, sinks=0) == attention()
    assert asked(window=128) == attention(window=128) != asked(sinks=1) == attention(sinks=1)
    for wrong in ({"window": -1}, {"window": "all"}, {"sinks": 2}):
        with pytest.raises(KforgeError, match=next(iter(wrong))):
            asked(**wrong)


def test_unknown_operator_lists_the_known_ones():
    with pytest.raises(KeyError, match="paged_attention"):
        operators.get("conv2d")


def test_importing_operators_is_lazy():
    code = ("import sys, kforge.operators as o; [o.get(n) for n in o.names()]; "
            "sys.exit(any(m in sys.modules for m in ('numpy', 'torch')))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
