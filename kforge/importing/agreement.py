"""A lowered graph held against its module: what the module makes in float32 lies within the graph's bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kforge.core.dtypes import DType
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
    copies = [item.clone() if isinstance(item, torch.Tensor) else item for item in flat]  # it may change its arguments
    try:
        with torch.no_grad():
            returned = call.module(*torch.utils._pytree.tree_unflatten(copies, tree))
    except MemoryError:
        raise
    except Exception as error:
        raise ImportFailure(f"calling it with {batch} rows fails with {type(error).__name__}: {error}") from error
    outputs, _ = torch.utils._pytree.tree_flatten(returned)
    ahead = len(bounds) - len(outputs)  # arguments that it changes are the graph's first outputs
    told = [f"{len(outputs)} outputs, expected {len(bounds)}"]
    if ahead >= 0:
        named = zip(output_names(made.graph)[ahead:], outputs, bounds[ahead:], strict=True)
        told = [text for name, output, bound in named if (text := _difference(name, output, bound))]
    if told:
        raise ImportFailure(f"the graph that was made of it computes something else than the module ({told[0]})")


def _difference(name: str, output: torch.Tensor, bound: Bound) -> str:
    """"" where the output is within the bound."""
    if output.shape != bound.reference.shape:
        return f"{name} has the shape {tuple(output.shape)}, expected {bound.reference.shape}"
    found = beyond_bound(name, DType.F32, np.ascontiguousarray(output.detach().numpy()), bound)
    return str(found) if isinstance(found, Mismatch) else ""
