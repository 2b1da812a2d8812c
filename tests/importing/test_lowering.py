"""Each problem's graph computes what the problem computes, and its bound tells right from wrong.

The problems are our own, so they run in this process; how files of others are held is ``test_confined``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kforge.core.dtypes import DType
from kforge.core.workload import Workload
from kforge.harness.values import Mismatch, beyond_bound
from kforge.importing.exporting import graph_of
from kforge.importing.failures import ImportFailure, Unsupported
from kforge.importing.loading import Call, ExampleInput, Source, call_of
from kforge.importing.sensitivity import CONSTANT, flags_of
from kforge.operators import Distribution
from kforge.operators.graph import AXIS, Kind, Op
from kforge.operators.import_record import GraphRecord, ImportRecord
from kforge.operators.imported import Imported, output_names

PROBLEMS = Path(__file__).parents[1] / "operators" / "problems"
MODELS = ("tall_product", "row_softmax", "channel_rms", "image_layer_norm", "middle_sum", "tanh_gelu", "scaled_leaky",
          "scaled_residual", "relu_divided", "sigmoid_residual", "divided_gelu", "gelu_softmax")
FUNCTIONS = {
    "attention": {"q": (2, 5, 16), "k": (2, 7, 16), "v": (2, 7, 9)},
    "statistics": {"x": (6, 31)},
    "gram": {"x": (6, 31)},
    "pieces": {"x": (5, 24)},
    "activations": {"x": (4, 50)},
    "powers": {"x": (4, 50)},
    "mean_of_all": {"x": (4, 50)},
}
KINDS = (Distribution.NORMAL, Distribution.ONE_HOT, Distribution.MIXED, Distribution.CANCEL, Distribution.LARGE,
         Distribution.SPARSE, Distribution.NAN, Distribution.INFINITE)


@functools.cache
def imported(file: str, function: str = "") -> tuple[Call, Imported]:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    label = f"{file}.py"
    source = Source((PROBLEMS / label).read_text(), label)
    inputs = tuple(ExampleInput(name, shape) for name, shape in FUNCTIONS.get(function, {}).items())
    call = call_of(source.executed({}), function, inputs, 1)
    graph = graph_of(call)
    record = ImportRecord(name="mine", source=label, source_hash="0" * 16, graph=GraphRecord.of(graph),
                          batch=call.args[0].shape[0] if graph.dynamic else 1)
    return call, Imported(ImportRecord.model_validate_json(record.model_dump_json()))


def eager(call: Call, operator: Imported, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What torch makes of these inputs in float32."""
    given = [g for g in operator.graph.given if g.kind is Kind.PARAMETER]
    names = {key.replace(".", "_"): key for key in call.module.state_dict()}
    parameters = {names[g.name]: torch.from_numpy(inputs[g.name]) for g in given}
    args = [torch.from_numpy(inputs[g.name]) for g in operator.graph.given if g.kind is Kind.ARGUMENT]
    with torch.no_grad():
        made: Any = torch.func.functional_call(call.module, parameters, tuple(args))
    return [tensor.numpy() for tensor in (made if isinstance(made, tuple) else (made,))]


def worst(operator: Imported, workload: Workload, inputs: dict[str, np.ndarray], made: list[np.ndarray]) -> list[Any]:
    bounds = operator.reference(workload, inputs)
    return [beyond_bound(name, DType.F32, value, bounds[name])
            for name, value in zip(output_names(operator.graph), made, strict=True)]


ALL = [*((model, "") for model in MODELS), *(("functions", function) for function in FUNCTIONS)]


@pytest.mark.parametrize(("file", "function"), ALL, ids=[f or m for m, f in ALL])
def test_torch_is_within_the_bound_of_what_was_imported(file: str, function: str) -> None:
    call, operator = imported(file, function)
    batches = (1, operator.batch, operator.batch + 3) if operator.graph.dynamic else (1,)
    for batch in batches:
        workload = Workload.of(operator.problem, B=batch)
        for seed, kind in enumerate(KINDS):
            inputs = operator.inputs(workload, seed, kind)
            found = worst(operator, workload, inputs, eager(call, operator, inputs))
            assert not any(isinstance(one, Mismatch) for one in found), f"B={batch} {kind}: {found}"


@pytest.mark.parametrize("model", MODELS)
def test_a_thousandth_off_is_beyond_the_bound(model: str) -> None:
    call, operator = imported(model)
    inputs = operator.inputs(operator.workload, 3, Distribution.NORMAL)
    (right,) = eager(call, operator, inputs)
    assert isinstance(worst(operator, operator.workload, inputs, [right * np.float32(1.001)])[0], Mismatch)
    bound = operator.reference(operator.workload, inputs)["out"]
    assert float(np.median(bound.bound)) < 1e-4 * float(np.abs(bound.reference).max())


@pytest.mark.parametrize("model", [m for m in MODELS if m != "tanh_gelu"])
def test_what_ignores_one_value_of_each_row_is_beyond_the_bound(model: str) -> None:
    call, operator = imported(model)
    inputs = operator.inputs(operator.workload, 3, Distribution.NORMAL)
    x = inputs[operator.graph.given[0].name]
    ignored = x.copy()
    ignored.reshape(len(x), -1)[:, -1] = 0
    made = eager(call, operator, {**inputs, operator.graph.given[0].name: ignored})
    assert isinstance(worst(operator, operator.workload, inputs, made)[0], Mismatch)


@pytest.mark.parametrize("model", MODELS)
def test_the_batch_stays_open(model: str) -> None:
    _, operator = imported(model)
    assert operator.graph.given[0].shape[0] == AXIS and operator.row_axis == "B"
    assert operator.graph.given[0].kind is Kind.ARGUMENT


def test_what_needs_the_number_of_rows_is_fixed() -> None:
    assert not imported("functions", "mean_of_all")[1].graph.dynamic
    assert imported("functions", "gram")[1].row_axis == ""


def test_products_stay_whole_and_elementwise_steps_few() -> None:
    _, operator = imported("sigmoid_residual")
    ops = [step.op for step in operator.graph.steps]
    assert ops.count(Op.MATMUL) == 1 and len(ops) <= 8
    assert [g.name for g in operator.graph.given] == ["x", "gemm_weight", "gemm_bias"]


REFUSED = {
    "sorting": "it uses aten.sort, which cannot be imported",
    "halves": "makes float16; only float32 can be imported",
    "positions": "int64|argmax",
}


@pytest.mark.parametrize(("function", "sentence"), REFUSED.items())
def test_what_no_graph_can_say_is_told_in_a_sentence(function: str, sentence: str) -> None:
    source = Source((PROBLEMS / "functions.py").read_text(), "functions.py")
    call = call_of(source.executed({}), function, (ExampleInput("x", (4, 6)),), 1)
    with pytest.raises(Unsupported, match=sentence):
        graph_of(call)


BROKEN = {
    "x = ": "is not Python",
    "def get_inputs(): return []": "has no Model: define it, or name a function",
    "Model = int\ndef get_inputs(): return [1]": "Model is no torch.nn.Module",
    "import torch\nclass Model(torch.nn.Module): pass\n": "has no get_inputs: define it, or give --inputs",
    "import torch\nclass Model(torch.nn.Module):\n def __init__(self, a): super().__init__()\n": r"Model\(...\) fails",
    "import torch\nclass Model(torch.nn.Module): pass\ndef get_inputs(): return 3": "something other than a list",
}


@pytest.mark.parametrize(("text", "sentence"), BROKEN.items(), ids=BROKEN.values())
def test_a_file_that_lacks_a_part_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ImportFailure, match=sentence):
        call_of(Source(text, "p.py").executed({}), "", (), 1)


def test_a_result_that_says_nothing_is_flagged() -> None:
    assert flags_of(imported("hardly")[1]) == (CONSTANT,)
    assert flags_of(imported("gelu_softmax")[1]) == flags_of(imported("tall_product")[1]) == ()


def test_the_guides_function_has_the_steps_that_its_kernel_takes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    text = page.partition("```python\n")[2].partition("```")[0]
    inputs = (ExampleInput("x", (256, 1000)), ExampleInput("scale", (1000,)))
    graph = graph_of(call_of(Source(text, "swish.py").executed({}), "swish", inputs, 1))
    assert [(g.name, g.shape) for g in graph.given] == [("x", (AXIS, 1000)), ("scale", (1000,))]
    assert [step.op for step in graph.steps] == [Op.SIGMOID, Op.MUL, Op.MUL]
