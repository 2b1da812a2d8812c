"""Weights in the layout that an operator's kernels read, packed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kforge.core.dtypes import WeightFormat
from kforge.core.errors import KforgeError
from kforge.core.layout import Layout
from kforge.core.workload import Problem
from kforge.operators import experts, layouts, weights

if TYPE_CHECKING:
    import numpy as np

    from kforge.operators.weights import QuantizedWeight

_FLOATS = {WeightFormat.F32: torch.float32, WeightFormat.F16: torch.float16, WeightFormat.BF16: torch.bfloat16}
_QUANTISERS = (WeightFormat.Q8_0, WeightFormat.Q4_0, WeightFormat.Q4_1)  # of the gguf package


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """``data`` u8[bytes], which only an operator of this problem's layout can read: its size tells two layouts not
    apart."""

    data: torch.Tensor
    weight: str  # its format, shape and layout


def weight_key(problem: Problem) -> str:
    """What two problems whose kernels can read the same packed weight have in common."""
    shape, layout = _shape(problem), _layout(problem)
    return f"{problem.str('weight')} {shape.experts} x {shape.n} x {shape.k} {layout.key}"


def pack(problem: Problem, weight: torch.Tensor, scales: torch.Tensor | None = None) -> PackedWeight:
    """``weight``: floats [N, K], of experts [E, N, K] or [E N, K], quantised here where the format is one that the
    ``gguf`` package quantises to, or mxfp4; or the bytes of a GGUF tensor of this format, u8; or for int8_channel
    int8 [N, K] with ``scales`` float32 [N].

    Raises KforgeError for what is none of these.
    """
    shape = _shape(problem)
    whole = _quantised(WeightFormat(problem.str("weight")), weight, scales, shape)
    layout = _layout(problem)
    data = experts.pack(whole, shape.experts, layout) if shape.experts > 1 or problem.operator == "moe_linear" else (
        layouts.pack(whole, layout))
    place = torch.empty(data.size, dtype=torch.uint8)  # torch aligns to 64 bytes, numpy does not
    place.numpy()[...] = data
    return PackedWeight(place, weight_key(problem))


@dataclass(frozen=True)
class _Shape:
    experts: int
    n: int
    k: int


def _shape(problem: Problem) -> _Shape:
    if problem.operator == "embedding":
        return _Shape(1, problem.int("V"), problem.int("H"))
    if problem.operator not in ("linear", "moe_linear"):
        raise KforgeError(f"{problem.operator} has no packed weight: its tensors are given as they are")
    count = problem.int("E") if problem.operator == "moe_linear" else 1
    return _Shape(count, problem.int("N"), problem.int("K"))


def _layout(problem: Problem) -> Layout:
    gates = dict(problem.static).get("epilogue", "none") not in ("none", "residual")
    return layouts.panel_layout(problem.int("rows"), gates)


def _quantised(
    format: WeightFormat, weight: torch.Tensor, scales: torch.Tensor | None, shape: _Shape
) -> QuantizedWeight:
    rows = shape.experts * shape.n
    given = weight.detach().cpu().contiguous()
    if format is WeightFormat.INT8_CHANNEL:
        if given.dtype is not torch.int8 or scales is None or given.numel() != rows * shape.k:
            raise KforgeError(f"a weight of int8_channel is int8 [{rows}, {shape.k}] with scales float32 [{rows}]")
        d = scales.detach().to(torch.float32).numpy().reshape(rows)
        return weights.from_int8_channel(given.numpy().reshape(rows, shape.k), d)
    if given.dtype is torch.uint8:
        return weights.from_gguf(given.numpy().reshape(-1), format, rows, shape.k)
    if given.numel() != rows * shape.k or given.shape[-1] != shape.k or not given.is_floating_point():
        raise KforgeError(f"the weight is {given.dtype} {tuple(given.shape)}; wanted are floats [{rows}, {shape.k}], "
                          f"or the bytes of a GGUF tensor of {format}")
    flat = given.reshape(rows, shape.k)
    if format in _FLOATS:
        exact = flat.to(_FLOATS[format])
        return weights.from_gguf(_bytes(exact), format, rows, shape.k)
    values = flat.to(torch.float32).numpy()
    if format is WeightFormat.MXFP4:
        return weights.quantize_mxfp4(values)
    if format not in _QUANTISERS:
        raise KforgeError(f"no library here quantises to {format}: give the bytes of a GGUF tensor (uint8)")
    if shape.k % format.traits.file_block:
        raise KforgeError(f"{format} needs rows of a multiple of {format.traits.file_block} elements, got {shape.k}")
    from gguf import GGMLQuantizationType, quants

    return weights.from_gguf(quants.quantize(values, GGMLQuantizationType[format.value.upper()]), format, rows, shape.k)


def _bytes(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.uint8).numpy().reshape(-1)
