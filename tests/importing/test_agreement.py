"""A graph computes what its module computes, in conditions too, or is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from kforge.importing.agreement import hold
from kforge.importing.exporting import lowered_call
from kforge.importing.failures import ImportFailure, Unsupported
from kforge.importing.importer import readable
from kforge.importing.loading import Call, _wrapped
from kforge.importing.lowering import Lowered
from kforge.operators.graph import Graph, Op

attention = torch.nn.functional.scaled_dot_product_attention
Function = Callable[..., torch.Tensor]


def called(function: Function, *args: torch.Tensor) -> Call:
    torch.manual_seed(3)
    return Call(_wrapped(function, len(args) or 1).eval(), args or (torch.randn(6, 8),))


def hollow(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < 0.5, torch.zeros_like(x), x)  # zeros among others


CONDITIONS: dict[str, Function] = {
    "a bool is a mask": lambda x: hollow(x).bool().float() + x,
    "a bool is cast": lambda x: hollow(x).to(torch.bool).to(torch.float32) * 3,
    "and of numbers": lambda x: torch.logical_and(hollow(x), x).float(),
    "and of small numbers": lambda x: torch.logical_and(x * 1e-25, x * 1e-25).float(),
    "or of numbers": lambda x: torch.logical_or(-x.abs(), torch.zeros_like(x)).float(),
    "a sum of bools": lambda x: ((x > 0) + (x > -1)).float(),
    "a bool of a bool": lambda x: ((x > 0) | (x < -1)).bool().float().mean(1),
    "attention with a mask of bools": lambda x: attention(x[None], x[None], x[None], attn_mask=(x @ x.T) > 0),
    "attention with a mask of numbers": lambda x: attention(x[None], x[None], x[None], attn_mask=x @ x.T),
    "a squeeze of nothing": lambda x: x[:, None].squeeze(()) + 0 * x,
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -0.5, 0.25),
    "an extent as an operand": lambda x: x.sum(1) / x.shape[0],
    "an extent as a number": lambda x: x + torch.full_like(x, x.shape[0]),
    "attention as wide as it has rows": lambda x: attention(x.T, x.T, x.T),
    "norm of groups over rows": lambda x: torch.nn.functional.group_norm(x.T, 1),
    "one number": lambda x: x.square().sum(),
}


@pytest.mark.parametrize("function", CONDITIONS.values(), ids=CONDITIONS)
def test_what_is_lowered_is_the_module(function: Function) -> None:
    call = called(function)
    hold(call, lowered_call(call))


def test_attention_that_drops_values_is_refused() -> None:
    with pytest.raises(Unsupported, match="it drops values at random"):
        lowered_call(called(lambda x: attention(x[None], x[None], x[None], dropout_p=0.5)))


def test_bools_are_no_float32_to_return() -> None:
    with pytest.raises(Unsupported, match="returns something other than float32"):
        lowered_call(called(lambda x: x > 0))


def in_a_part(x: torch.Tensor) -> torch.Tensor:
    x[:, 0] = 0
    return x.sum(1)


CHANGING: dict[str, Function] = {
    "whole": lambda x: torch.relu_(x) + 1,
    "what it returns": lambda x: x.add_(1),
    "a part": in_a_part,
}


@pytest.mark.parametrize("function", CHANGING.values(), ids=CHANGING)
def test_an_argument_that_is_changed_in_place_is_refused_by_name(function: Function) -> None:
    with pytest.raises(Unsupported, match=r"it changes its argument \w+ in place.* clone\(\)"):
        lowered_call(called(function))


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls.sum()


def test_a_buffer_that_is_changed_in_place_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="it changes its buffer calls in place"):
        lowered_call(Call(Counting().eval(), (torch.randn(6, 8),)))


def test_what_is_changed_in_a_copy_is_imported() -> None:
    call = called(lambda x: torch.relu_(x.clone()) + 1)
    made = lowered_call(call)
    hold(call, made)
    assert len(made.graph.outputs) == 1


def changed(made: Lowered, old: Op, new: Op) -> Lowered:
    steps = tuple(dataclasses.replace(step, op=new) if step.op is old else step for step in made.graph.steps)
    assert steps != made.graph.steps
    return dataclasses.replace(made, graph=Graph(made.graph.given, steps, made.graph.outputs))


DIFFERENT = "computes something else than the module "


def test_a_graph_of_something_else_is_refused() -> None:
    call = called(lambda x: torch.exp(x) + 1)
    with pytest.raises(ImportFailure, match=DIFFERENT + r"\(out\[0, 0\] is .* expected"):
        hold(call, changed(lowered_call(call), Op.EXP, Op.ABS))


class Rough(torch.nn.Module):
    """Adds as torch's norms do, each value to all before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        exact = torch.compiler.is_compiling() or x.dtype is torch.float64
        return x.exp().sum(1) if exact else x.exp().sum(1) * 1.001


def test_a_module_that_rounds_roughly_is_held_in_float64() -> None:
    call = dataclasses.replace(called(torch.exp), module=Rough().eval())
    made = lowered_call(call)
    hold(call, made)
    with pytest.raises(ImportFailure, match=DIFFERENT):
        hold(call, changed(made, Op.EXP, Op.ABS))


def test_what_differs_at_other_arguments_alone_is_refused() -> None:
    call = called(lambda x: torch.relu(x) + 1, torch.ones(6, 8))
    made = changed(lowered_call(call), Op.RELU, Op.ABS)
    with pytest.raises(ImportFailure, match=DIFFERENT):
        hold(call, made)


def test_a_costly_call_is_held_with_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        rows.append(x.shape[0])
        return torch.exp(x) @ x.new_ones(8, 8)

    monkeypatch.setattr("kforge.importing.agreement._QUICK", 1000)
    call = called(counted, torch.randn(64, 8))
    made = lowered_call(call)
    rows.clear()
    hold(call, made)
    assert rows == [4, 4]
    rows.clear()
    monkeypatch.setattr("kforge.importing.agreement._MOST", (10, 10))
    hold(call, made)
    assert rows == []


def test_the_child_may_read_the_processors_features() -> None:
    assert "/proc/cpuinfo" in readable()  # torch makes halves with them
