"""A lowered graph held against its module: what that makes, in float32 or else in float64, is within its bounds."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from kforge.core.dtypes import DType
from kforge.core.words import counted
from kforge.harness.values import Mismatch, beyond_bound
from kforge.importing.failures import ImportFailure
from kforge.importing.loading import Call
from kforge.importing.lowering import Lowered
from kforge.operators.base import Bound
from kforge.operators.graph import AXIS, Given, Kind
from kforge.operators.graph_reference import references
from kforge.operators.imported import operations, output_names, peak_bytes

_QUICK = 50_000_000  # operations of the reference of one draw: a larger batch is made smaller, where it is open
_MOST = 2_000_000_000, 256 << 20  # operations, bytes on the way: a call of a fixed shape beyond that is not held
_ZEROS = 8  # every eighth value of a draw, so that conditions on zero are decided both ways


def hold(call: Call, made: Lowered) -> None:
    """At the call's own arguments and at others as large, with a part of the rows where all cost too much; not
    at all where the least call costs more than _MOST. Raises ImportFailure where they disagree."""
    flat, tree = torch.utils._pytree.tree_flatten(call.args)
    arguments = {given.name: given for given in made.graph.given if given.kind is Kind.ARGUMENT}
    rows = next((made.tensors[g.name].shape[0] for g in arguments.values() if AXIS in g.shape), 1)
    batch = _batch(made, rows)
    if not batch:
        return
    if batch < rows:
        fixed = {made.places[name] for name, given in arguments.items() if AXIS not in given.shape}
        flat = [item if at in fixed else _first(item, rows, batch) for at, item in enumerate(flat)]
    places = {made.places[name]: given for name, given in arguments.items()}
    rng = np.random.default_rng(0)
    for again in (False, True):
        if again:
            flat = [_drawn(rng, item, places[at]) if at in places else item for at, item in enumerate(flat)]
        _hold_one(call, made, flat, tree, batch)


def _batch(made: Lowered, rows: int) -> int:
    """How many rows; 0: not even the least is cheap enough."""
    batch = rows
    while made.graph.dynamic and batch > 1 and operations(made.graph, batch) > _QUICK:
        batch = (batch + 1) // 2
    fits = operations(made.graph, batch) <= _MOST[0] and peak_bytes(made.graph, batch) <= _MOST[1]
    return batch if fits else 0


def _first(item: Any, rows: int, batch: int) -> Any:
    return item[:batch] if isinstance(item, torch.Tensor) and item.dim() and item.shape[0] == rows else item


def _drawn(rng: np.random.Generator, like: torch.Tensor, given: Given) -> torch.Tensor:
    """As large as these, of both signs."""
    values = np.asarray(rng.standard_normal(tuple(like.shape)) * (abs(given.mean) + given.spread or 1.0))
    return torch.from_numpy(np.where(rng.integers(_ZEROS, size=values.shape) == 0, 0.0, values).astype(np.float32))


def _hold_one(call: Call, made: Lowered, flat: list[Any], tree: Any, batch: int) -> None:
    values = {name: tensor.detach().numpy() for name, tensor in made.tensors.items()}
    values |= {name: flat[at].detach().numpy() for name, at in made.places.items() if name in values}
    bounds = references(made.graph, values, batch)
    try:
        outputs = _returned(call.module, flat, tree, torch.float32)
    except MemoryError:
        raise
    except Exception as error:
        rows = counted(batch, "row")
        raise ImportFailure(f"calling it with {rows} fails with {type(error).__name__}: {error}") from error
    if (told := _differences(made, outputs, bounds)) and not _right_in_float64(call, made, flat, tree, bounds):
        raise ImportFailure(f"the graph that was made of it computes something else than the module ({told[0]})")


def _returned(module: Any, flat: list[Any], tree: Any, dtype: torch.dtype) -> list[Any]:
    """Called with copies: what it does to its arguments must not reach another call."""
    copies = [item.to(dtype if item.is_floating_point() else item.dtype, copy=True)
              if isinstance(item, torch.Tensor) else item for item in flat]
    with torch.no_grad():
        returned = module(*torch.utils._pytree.tree_unflatten(copies, tree))
    return torch.utils._pytree.tree_flatten(returned)[0]


def _right_in_float64(call: Call, made: Lowered, flat: list[Any], tree: Any, bounds: list[Bound]) -> bool:
    """Whether rounding alone keeps the module from its graph: torch adds millions of values one after another."""
    try:
        outputs = _returned(copy.deepcopy(call.module).double(), flat, tree, torch.float64)
        return not _differences(made, [output.float() for output in outputs], bounds)
    except MemoryError:
        raise
    except Exception:  # made for float32 alone
        return False


def _differences(made: Lowered, outputs: list[Any], bounds: list[Bound]) -> list[str]:
    if len(outputs) != len(bounds):
        return [f"{counted(len(outputs), 'output')}, expected {len(bounds)}"]
    named = zip(output_names(made.graph), outputs, bounds, strict=True)
    return [text for name, output, bound in named if (text := _difference(name, output, bound))]


def _difference(name: str, output: torch.Tensor, bound: Bound) -> str:
    """"" where the output is within the bound."""
    shape = np.shape(bound.bound)
    if output.shape != shape:
        return f"{name} has the shape {tuple(output.shape)}, expected {shape}"
    found = beyond_bound(name, DType.F32, np.array(output.detach().numpy(), order="C"), bound)
    return str(found) if isinstance(found, Mismatch) else ""
