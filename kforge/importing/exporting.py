"""A call exported by torch, its leading dimension left open where the function allows that."""

from __future__ import annotations

from typing import Any

import torch

from kforge.importing.failures import ImportFailure, NotDynamic, Unsupported
from kforge.importing.loading import Call
from kforge.importing.lowering import KEPT_WHOLE, Lowered, lowered
from kforge.operators.graph import Graph


def graph_of(call: Call) -> Graph:
    """See ``lowered_call``."""
    return lowered_call(call).graph


def lowered_call(call: Call) -> Lowered:
    """With B as the leading dimension of all arguments that begin alike, else of the first one, else for one shape.

    Raises Unsupported, or ImportFailure where torch cannot export it at all.
    """
    tensors = [i for i, arg in enumerate(call.args) if isinstance(arg, torch.Tensor) and arg.dim()]
    if not tensors:
        raise ImportFailure("none of its arguments is a tensor with a dimension")
    batch = call.args[tensors[0]].shape[0]
    alike = [i for i in tensors if call.args[i].shape[0] == batch]
    plans = [alike, tensors[:1]] if len(alike) > 1 else [alike]
    for plan in plans if batch > 1 else []:
        try:
            made = lowered(_exported(call, plan))
        except (NotDynamic, ImportFailure):
            continue  # what is beyond any graph shows again, without a batch
        if made.graph.dynamic:
            return made
    try:
        return lowered(_exported(call, []))
    except NotDynamic as error:
        raise Unsupported(f"its shapes are not fixed: {error}") from None


def given_tensors(call: Call) -> dict[str, torch.Tensor]:
    """What the graph of a call is given, by name and in the order that it has there, with the call's own values."""
    return lowered(_exported(call, [])).tensors


def _exported(call: Call, dynamic: list[int]) -> torch.export.ExportedProgram:
    shapes: tuple[Any, ...] = tuple({0: torch.export.Dim.AUTO} if i in dynamic else None for i in range(len(call.args)))
    table = torch.export.default_decompositions()
    for name in KEPT_WHOLE:
        packet, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    try:
        with torch.no_grad():
            program = torch.export.export(call.module, call.args, strict=False,
                                          dynamic_shapes=shapes if dynamic else None)
            return program.run_decompositions(table)
    except MemoryError:
        raise
    except Exception as error:  # torch raises errors of all kinds for what it cannot follow
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ImportFailure(f"torch cannot export it: {type(error).__name__}: {lines[0] if lines else ''}") from error
