"""A mask among a module's buffers holds its own two values in every draw: it is neither flagged nor left untested."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kforge.core.dtypes import DType
from kforge.harness.values import Mismatch, beyond_bound
from kforge.importing.agreement import hold
from kforge.importing.exporting import lowered_call
from kforge.importing.loading import Call
from kforge.importing.masks import levels
from kforge.importing.sensitivity import flags_of
from kforge.operators import Distribution
from kforge.operators.graph import Graph, Op
from kforge.operators.import_record import GraphRecord, ImportRecord
from kforge.operators.imported import Imported

ROWS, LENGTH, WIDTH = 3, 24, 8
CAUSAL = torch.ones(LENGTH, LENGTH).tril()


class Attention(torch.nn.Module):
    """Over x itself; ``mask`` says how the buffer is used."""

    def __init__(self, buffer: torch.Tensor, mask: str) -> None:
        super().__init__()
        self.register_buffer("mask", buffer)
        self.how = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(1, 2) / 4.0
        match self.how:
            case "added":
                scores = scores + self.mask
            case "kept":
                scores = scores * self.mask - 1e9 * (1 - self.mask)
            case "filled":
                scores = scores.masked_fill(self.mask == 0, -1e9)
        return torch.softmax(scores, dim=-1) @ x


MASKS = {
    "added": (1 - CAUSAL) * -1e9,
    "kept": CAUSAL,
    "filled": CAUSAL,
}


def made(how: str) -> tuple[Call, Imported]:
    torch.manual_seed(2)
    call = Call(Attention(MASKS[how], how).eval(), (torch.randn(ROWS, LENGTH, WIDTH),))
    lowered = lowered_call(call)
    hold(call, lowered)
    record = ImportRecord(name="mine", source="mine.py", source_hash="0" * 16, graph=GraphRecord.of(lowered.graph),
                          batch=ROWS if lowered.graph.dynamic else 1)
    return call, Imported(record)


@pytest.mark.parametrize("how", MASKS)
def test_an_honest_mask_is_not_flagged(how: str) -> None:
    assert flags_of(made(how)[1]) == ()


@pytest.mark.parametrize("how", MASKS)
def test_what_ignores_the_mask_is_beyond_the_bound(how: str) -> None:
    _, operator = made(how)
    inputs = operator.inputs(operator.workload, 5, Distribution.NORMAL)
    bound = operator.reference(operator.workload, inputs)["out"]
    x = torch.from_numpy(inputs["x"])
    (step,) = [s for s in operator.graph.steps if s.op is Op.LESS and s.inputs[0] == "mask"]
    between = next(s.value for s in operator.graph.steps if s.name == step.inputs[1])
    low, high = MASKS[how].min(), MASKS[how].max()
    drawn = torch.where(torch.from_numpy(inputs["mask"]) < between, low, high)
    assert 0.3 < float((drawn == low).float().mean()) < 0.7
    neutral = torch.zeros(LENGTH, LENGTH) if how == "added" else torch.ones(LENGTH, LENGTH)
    with torch.no_grad():
        right = Attention(drawn, how)(x).numpy()
        wrong = Attention(neutral, how)(x).numpy()
    assert not isinstance(beyond_bound("out", DType.F32, right, bound), Mismatch)
    assert isinstance(beyond_bound("out", DType.F32, wrong, bound), Mismatch)


@pytest.mark.parametrize("share", [0.03, 0.5, 0.98])
@pytest.mark.parametrize(("low", "high"), [(-1e9, 0.0), (0.0, 1.0), (-3.0e38, 0.0), (-1.0, 1.0), (5.0, 5e8)])
def test_draws_hold_either_value_as_often_as_the_buffer_does(low: float, high: float, share: float) -> None:
    buffer = torch.full((1000,), high)
    buffer[: int(1000 * share)] = low
    found = levels(buffer)
    assert found is not None and (found.low, found.high) == (float(buffer.min()), float(buffer.max()))
    assert found.low < found.between <= found.high
    drawn = np.random.default_rng(1).standard_normal(20_000) * found.spread + found.mean
    assert abs(float((drawn.astype(np.float32) < found.between).mean()) - share) < 0.02
    assert abs(found.mean) < 1e30 and found.spread < 1e30  # what a record may hold


def test_what_is_no_mask_is_left_as_it_is() -> None:
    for buffer in (torch.ones(64), torch.zeros(64), torch.arange(64.0), torch.tensor([0.5, 2.0]),
                   torch.tensor([0.0, float("-inf")]).repeat(32), torch.tensor([0.0, float("nan")]).repeat(32)):
        assert levels(buffer) is None


def test_running_statistics_are_drawn_as_weights_are() -> None:
    call = Call(torch.nn.BatchNorm1d(32).eval(), (torch.randn(6, 32),))
    graph: Graph = lowered_call(call).graph
    assert not any(step.op is Op.LESS for step in graph.steps)
    assert {"running_mean", "running_var"} <= {given.name for given in graph.given}
